"""Commands on topics and their records."""
