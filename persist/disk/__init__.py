"""The file system, and what is written beside definitions and messages.

Theory. All that the message storage does to a disk goes through the verbs of `filesystem`, so that
a simulated disk can fail at each of them. What is written in the background goes through
`group_commit`: its thread writes all that was asked for meanwhile, and syncs once.

| module | for |
|---|---|
| `filesystem`, `group_commit` | writing and syncing, for the rooms above |
| `data_directory`, `cluster_file` | which node and which cluster a directory belongs to |
| `card_log` | the cards of a node's copies of mirrored queues |
| `trace_files` | the recorded lives of messages |

This room knows no other room of `persist`.
"""
