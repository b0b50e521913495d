"""Edges: where people and programs meet Tidings."""
