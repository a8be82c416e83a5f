"""The platform on this machine: which nodes a data directory has, and how they are started, asked and stopped."""
