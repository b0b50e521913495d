"""Providers of text messages."""
