"""
Further ports of `fluvial serve`, for clients that speak no HTTP; each is a process of its own, on this machine alone.
"""
