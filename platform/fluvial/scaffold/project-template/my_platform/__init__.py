"""Orders of a shop, and what its customers spent."""
