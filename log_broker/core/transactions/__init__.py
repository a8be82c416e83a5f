"""Transactional ids: their states and their records (KIP-98, KIP-890)."""
