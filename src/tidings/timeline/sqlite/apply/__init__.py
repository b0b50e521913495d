"""Applying commands: new schedules in bulk, changes one by one, in one transaction."""
