"""The PostgreSQL store, for a fleet: one schema holds the timeline, the log and everything else, divided into lanes.

The path of a row: `registry` (its id) and `timeline` (by due time) -> `log` or `outbox`, and `finished`, in one
transaction of the lane's owner.
"""
