"""What the benchmarks of the fleet share: a PostgreSQL that syncs, nodes in processes of their own, a bare COPY."""
