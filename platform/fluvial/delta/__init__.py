"""Delta tables: commits that carry offsets."""
