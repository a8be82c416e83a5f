"""Avro schemas: their text, what may follow what, and whether bytes decode. Nothing here knows of a registry."""
