"""Schedules: what is asked for, when it falls due, and what happens when it is late."""
