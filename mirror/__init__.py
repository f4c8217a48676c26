"""Replication of queues between nodes: the links between them."""
