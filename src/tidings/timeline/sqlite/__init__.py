"""The SQLite store: one file holds the timeline, the log, the tables of notifications and everything else.

The path of a row: `parcel` (packed, by day) -> `parcel` (packed, by quarter of an hour, when its day is about to begin)
-> `near` (single rows by due time, for the next minutes) -> `log` and `finished`, in one transaction.
"""
