"""The embedded store: one SQLite file holds the timeline, the log and all that belongs to them.

How a row walks through it: `far` (by day, in order of arrival) -> `far` again (by quarter of an hour, once its day
is near) -> `near` (ordered by due time, the next minutes) -> `log` and `finished`, in one transaction.
"""
