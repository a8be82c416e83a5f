"""Where a registry keeps its records: the log of a broker, or a topic of another cluster."""
