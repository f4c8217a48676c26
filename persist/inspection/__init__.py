"""Reading a data directory from outside: for `warren store`, backups, Spark.

Theory. Nothing here writes, and the node may work meanwhile: the reader sees what a start at that
moment would find.

| module | for |
|---|---|
| `store_view` | the live messages, and their places; begin here |
| `check` | damage: the messages that it costs, and what helps |
| `dump` | the entries of a queue, for people |
| `queue_levels` | which levels of a queue a storage may have, as its definition says |

This room knows all others.
"""
