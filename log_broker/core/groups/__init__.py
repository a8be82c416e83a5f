"""Consumer groups of both protocols (KIP-62, KIP-848), their offsets and their records."""
