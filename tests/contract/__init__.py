"""One suite over every store: what `tidings.ports.Store` promises. The memory store is the specification."""
