-- Records of the outbox by id: whether an occurrence of a schedule is on its way to Kafka.
CREATE INDEX log_in_outbox ON log (id, position) WHERE position < 1 << 38;
