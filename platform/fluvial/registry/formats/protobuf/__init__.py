"""Protobuf schemas: .proto text and descriptors, one from the other, and what may follow what. No registry in here."""
