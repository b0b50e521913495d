"""What the benchmarks of Kafka share: a broker, an engine that is joined to it, a reader, and bare transactions."""
