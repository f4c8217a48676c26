"""Stores read over HTTP, from the node that has them.

`remote_store` asks a node for a snapshot and is to the rest what a directory is. `remote_files`
reads its octets by range, `remote_node` is the connection, and `lease_keeper` releases snapshots
when the Spark application ends.
"""
