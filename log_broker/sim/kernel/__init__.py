"""Virtual time, and machines, networks and disks that fail by chance of a seed."""
