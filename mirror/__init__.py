"""What makes nodes a cluster: links, shared definitions, membership, replication of queues."""
