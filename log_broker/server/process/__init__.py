"""What a node has of its process: event loop, threads, files, counters, a limited log."""
