"""Recovery: reading the disk when a node starts.

Theory. The files of the indexes are as old as the last checkpoint. A start reads them
(`stored_index`), replays the journal from there on, cuts off an incomplete batch at the end, and
counts the live messages in each file (`recovery`). It decides nothing about queues: `storage` does
that, and the callers who have the definitions.

This room knows `layout` and `log`.
"""
