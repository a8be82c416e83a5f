"""`fluvial table`."""
