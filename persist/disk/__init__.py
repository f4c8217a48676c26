"""The file system, and small files beside definitions and messages.

Theory. The message storage uses the disk through the functions of `filesystem` only, so that a
simulated disk can fail at each of them. Writing in the background goes through `group_commit`: its
thread writes everything that was submitted meanwhile, and syncs once.

| module | for |
|---|---|
| `filesystem`, `group_commit` | writing and syncing, for the rooms above |
| `data_directory`, `cluster_file` | which node and which cluster a directory belongs to |
| `control_socket` | the socket at which a node takes commands |
| `card_log` | the cards of a node's copies of mirrored queues |
| `trace_files` | the recorded lives of messages |

This room knows no other room of `persist`.
"""
