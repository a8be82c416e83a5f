"""The metadata quorum and the controller of a node, and its life in the cluster."""
