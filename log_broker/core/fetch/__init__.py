"""Fetch between brokers and sessions of fetches (KIP-227)."""
