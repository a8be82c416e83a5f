"""The simulator: the core's state machines on a virtual clock, network and disk, under faults drawn from a seed."""
