"""
The Kafka cluster as its clients see it: how it is reached, and what is said when it cannot be.

Everything here that talks to a cluster is made by `KafkaCluster`; nobody else knows of TLS, certificates or passwords.
"""

from fluvial.kafka.cluster import KafkaCluster

__all__ = ["KafkaCluster"]
