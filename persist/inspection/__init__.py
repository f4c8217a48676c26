"""A data directory seen from outside: `warren store`, backups, Spark.

Theory. Nothing here writes, and the node may work meanwhile: what is read is what a start at that
moment would find.

| module | for |
|---|---|
| `store_view` | what is alive, and where; begin here |
| `check` | damage: what it costs, and what helps |
| `dump` | the entries of a queue, for people |
| `queue_levels` | which levels of a queue a storage may have, as its definition says |

This room knows all others.
"""
