"""The message storage of a node: its parts put together.

Theory. `storage` opens a directory, gives every queue its index, and runs checkpoints and the
removal of files. Long work does one step in each turn of the loop, so that clients are served
meanwhile.

| module | for |
|---|---|
| `storage` | the parts put together; begin here |
| `checkpoint` | brings index files up to date, so that the journal before can go |
| `deletion` | removes the files and messages of deleted queues |
| `disk_trouble` | whether the disk works, from failed and successful writes |
| `missing_store` | a directory whose storage is gone: refused, or given an empty one |
| `unclaimed` | messages that no definition names, and that were not deleted |
| `work_in_turns` | does long work, a step in each turn |

This room knows all others but `inspection`.
"""
