"""Connections: framing, requests in their order, memory for them, and connections to other brokers."""
