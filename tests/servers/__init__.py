"""Real servers for tests and benchmarks, and what stands between them and their clients."""
