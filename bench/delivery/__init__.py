"""What the benchmarks of delivery share: people, a receiver, a node that tells them, and the bare client beside it."""
