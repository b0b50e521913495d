"""What the benchmarks of delivery share: users, a receiver, a node that sends notifications, and the bare client."""
