"""The flights that left New York in 2013: their tables, declared, and the one transform that is code."""
