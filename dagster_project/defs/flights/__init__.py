"""The flights of 2013 from New York."""
