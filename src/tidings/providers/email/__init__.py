"""Providers of e-mail."""
