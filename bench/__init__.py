"""The benchmarks of Tidings. Each is compared with the bare machine, or a peer, doing the same work in the same run."""
