"""The faults that a cluster's settings claim to survive, played on a copy of it in processes of this machine."""
