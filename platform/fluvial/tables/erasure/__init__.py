"""A record key erased everywhere: what holds it, the log, the tables in their order, and what is left."""
