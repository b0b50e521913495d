"""Accepts notifications: checks the request, dry-runs its rendering, and stores it with its schedule."""
