"""The only code that touches the disk: definitions, messages, and what is written beside them.

Theory. Definitions are decided in memory and written to LMDB behind that, transaction by
transaction. Messages are written to a log once, by one thread with one sync for all queues; the
index of each queue says where its messages are. The files of the indexes may be behind: a start
reads them, and what the log says since then. `docs/storage-format.md` has every byte.

| where to look | for |
|---|---|
| `data_directory`, `cluster_file` | which node a directory belongs to, and its format |
| `metadata` | the definitions of a node; `metadata_replica` a node's copy of its cluster's |
| `database`, `database_writer`, `group_commit` | LMDB files, and writing them in the background |
| `key_file`, `card_files` | values of others: shared definitions, cards of copies |
| `sealing`, `lmdb_file`, `second_copy`, `repair` | definitions that are damaged, and what helps |
| `storage` | the message storage of a node; begin here, or with `queue_index` |
| `queue_index`, `index_entries`, `segment`, `entry_reading` | where a queue's messages are |
| `journal`, `log_writer`, `message_store`, `format` | the log: one sync for all queues |
| `checkpoint`, `combine`, `copy_records`, `deletion` | keeping files few and short |
| `recovery`, `stored_index`, `log_reader` | what a node finds when it starts |
| `deleted_queues`, `unclaimed` | messages whose queue is gone, and those that nobody deleted |
| `delivery_counts`, `retained_index`, `stream_reading`, `index_beside` | indexes that can do more |
| `pins`, `pin_owner`, `cursors` | snapshots for readers beside the node |
| `check`, `dump`, `store_view`, `definitions_copy` | reading a directory from outside |
"""
