"""Applying commands: one transaction for many, its rows loaded under locks and written back together."""
