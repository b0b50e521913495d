"""The bus: where consumers read released records, in the built-in log or on Kafka."""
