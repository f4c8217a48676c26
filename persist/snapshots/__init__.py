"""Snapshots that keep files of the store for readers beside the node: Spark, exports, backups.

Theory. A snapshot is a directory of links to files that never change again. The node does not
remove files that a snapshot links to. It counts their octets, and removes the snapshot when its
lease has run out or its owner has ended.

| module | for |
|---|---|
| `pins` | the snapshots, their leases, and how much they hold; begin here |
| `pin_owner` | the process that a snapshot is kept for |
| `cursors` | names under which streams keep their snapshots from batch to batch |

This room knows `disk`. Snapshots are made by `spark_export/snapshot/` and `backup/`.
"""
