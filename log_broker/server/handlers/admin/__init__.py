"""Topics, settings, brokers, and what is refused."""
