"""Clients of a simulated cluster: producers, readers, copiers, members of groups."""
