"""HTTP for providers: calls, the guard against calls to private addresses, and signed tokens."""
