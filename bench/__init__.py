"""The benchmarks of Tidings: each beside the bare machine, or a peer, doing the same work in the same run."""
