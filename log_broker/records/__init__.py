"""Record batches (magic 2): layout, checks, compression."""
