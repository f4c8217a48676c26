"""Replication of queues between nodes: gm, the guaranteed multicast over a ring."""
