"""The message storage of a node, put together.

Theory. `storage` opens a directory, gives every queue its index, and runs what must happen now and
then. Long work is done a step in each turn of the loop, so that clients are served meanwhile.

| module | for |
|---|---|
| `storage` | the parts put together; begin here |
| `checkpoint` | index files brought up to date, so that the journal before can go |
| `deletion` | what deleted queues had on disk |
| `missing_store` | a directory whose storage is gone: refused, or given an empty one |
| `unclaimed` | messages that no definition names, and that were not deleted |
| `work_in_turns` | work that takes long |

This room knows all others but `inspection`.
"""
