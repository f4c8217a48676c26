"""What makes nodes a cluster: shared definitions, membership, replication of queues."""
