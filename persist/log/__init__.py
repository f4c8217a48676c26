"""The log: what all queues of a node write, in one order, with one sync for all of them.

Theory. A message's body is written once, as a record of the log. `journal` collects what every
queue has to write, one thread writes it as a batch and syncs it, and then the publishes in it are
confirmed. A file is never changed after it is full: it is removed when nothing in it is alive, or
written anew without what is dead.

| module | for |
|---|---|
| `journal` | batches: what is in one, and who is told when it is on disk; begin here |
| `log_writer` | the thread that writes and syncs |
| `message_store` | where records are, and how much of each file is alive |
| `log_files`, `log_reader` | the files of a directory, and what is in one |
| `combine`, `copy_records` | files written anew when most of what is in them is dead |
| `store_context` | what the parts of a storage are given |

This room knows `disk` and `layout`, and no index: queues hand it octets.
"""
