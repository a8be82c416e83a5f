"""`make bench-ask`: how long a question takes."""
