"""
Delta tables as the only checkpoint: what a commit says about the log it was made from, and how such commits are made.
"""
