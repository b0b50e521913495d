"""Pending rows by due time: packed while they are far, single rows when they are near."""
