"""Real servers for tests and benchmarks, and proxies between them and their clients."""
