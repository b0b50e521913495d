"""Applies commands: many in one transaction, whose rows are loaded with locks and written back together."""
