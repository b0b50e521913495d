"""The store of a fleet: one PostgreSQL holds the timeline, the log and all that belongs to them, divided into lanes.

How a row walks through it: `registry` (its id) and `timeline` (in the order of due times) -> `log` or `outbox`, and
`finished`, in one transaction of the lane's owner.
"""
