"""A replicated log broker that speaks Kafka's protocol."""
