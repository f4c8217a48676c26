"""The file system, and what is written beside definitions and messages.

Theory. All that the message storage does to a disk goes through the verbs of `filesystem`, so that
a simulated disk can fail at each of them. Whoever writes in the background does it through
`group_commit`: a thread writes and syncs at once what was asked for meanwhile.

| module | for |
|---|---|
| `filesystem`, `group_commit` | every other room of `persist` |
| `data_directory`, `cluster_file` | which node and which cluster a directory belongs to |
| `card_log` | the cards of a node's copies of mirrored queues |
| `trace_files` | the recorded lives of messages |

This room knows no other room of `persist`.
"""
