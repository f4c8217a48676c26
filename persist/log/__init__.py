"""The log: one sequence of records for all queues of a node, with one sync for all of them.

Theory. A message's body is written once, as a record of the log. `journal` collects what every
queue has to write, one thread writes it as a batch and syncs it, and then the publishes in it are
confirmed. A full file is never changed: it is removed when no record in it is alive, or written
anew without the dead records.

| module | for |
|---|---|
| `journal` | batches: gathering one, and telling publishers when it is on disk; begin here |
| `log_writer` | the thread that writes and syncs |
| `message_store` | the files of the log, and how much of each is alive |
| `log_files`, `log_reader` | finding the files of a directory, and reading one |
| `combine`, `copy_records` | writing files anew when most records in them are dead |
| `store_context` | the context that all parts of a storage get |

This room knows `disk` and `layout`, and no index: queues hand it octets.
"""
