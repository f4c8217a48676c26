"""Replication of queues between nodes. Empty until clustering is built."""
