"""Pending rows by due time: packed while they are due later, single rows when they are due soon."""
