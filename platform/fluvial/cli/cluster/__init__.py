"""Commands on clusters and the nodes of this machine."""
