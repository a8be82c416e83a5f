"""What brings tables up to date, from the start, or in step with a topic."""
