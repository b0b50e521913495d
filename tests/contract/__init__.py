"""One suite over every store, for the contract of `tidings.ports.Store`. The memory store is the reference."""
