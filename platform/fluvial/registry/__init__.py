"""The Avro schema registry."""
