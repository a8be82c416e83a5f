"""
Tables written back to topics: each change of each version once, in transactions that also hold how far it has come.
"""
