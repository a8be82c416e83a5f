"""Partitions on this node: their logs on the disk, and the effects of what the core decides."""
