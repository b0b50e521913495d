-- tidings: outside a transaction
-- Records of the outbox by id: whether an occurrence of a schedule is on its way to Kafka.
CREATE INDEX CONCURRENTLY IF NOT EXISTS outbox_id ON tidings.outbox (lane, id, "offset");
