"""Providers of push notifications."""
