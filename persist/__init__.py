"""Everything that a node keeps on disk: definitions, messages, and small files beside them.

Theory. Definitions are decided in memory and written to LMDB behind that, transaction by
transaction. Messages are written to a log once, by one thread with one sync for all queues; the
index of each queue says where its messages are. The files of the indexes may be behind: a start
reads them, and what the log says since then. `docs/storage-format.md` has every byte.

| room | for |
|---|---|
| `storage` | the message storage of a node, put together; begin here |
| `log` | the one log of all queues, written with one sync for all |
| `index` | where each queue's messages are |
| `recovery` | reading all that when a node starts |
| `layout` | the format of the files, down to every byte |
| `definitions` | exchanges, queues, users and the rest, in LMDB and in a second copy |
| `snapshots` | files kept for readers beside the node |
| `inspection` | reading a directory from outside, and looking for damage |
| `disk` | the file system, group commit, and which node owns a directory |
"""
