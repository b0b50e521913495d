"""The embedded store: one SQLite file holds the timeline, the log and all that belongs to them.

How a row walks through it: `parcel` (by day, packed as it came) -> `parcel` again (by quarter of an hour, once its day
is about to begin) -> `near` (ordered by due time, the next minutes) -> `log` and `finished`, in one transaction.
"""
