"""Parts of tables made again: of a stretch of time, or of a range of offsets."""
