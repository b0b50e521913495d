"""Wires: request formats, turned into commands."""
