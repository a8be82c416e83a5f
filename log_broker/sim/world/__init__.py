"""Whole brokers in simulation: the processes, the cluster, its operators."""
