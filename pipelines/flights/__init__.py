"""The flights that left New York in 2013: their events, their tables, and the demo that runs the whole path on them."""
