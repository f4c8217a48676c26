"""Stores read over HTTP, from the node that has them.

`remote_store` asks a node for a snapshot, and offers what a directory does to the other rooms.
`remote_files` reads its octets by range, `remote_node` is the connection. `lease_keeper` releases
snapshots when the Spark application ends, `cursor_keeper` leaves the cursor of a stream when that
ends.
"""
