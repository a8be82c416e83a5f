"""The schema languages: Avro, JSON Schema, Protobuf."""
