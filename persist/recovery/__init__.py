"""What a node finds on disk when it starts.

Theory. The files of the indexes are as old as the last checkpoint. A start reads them
(`stored_index`), replays the journal from there on, cuts off a batch that was never whole, and
counts what is alive in each file (`recovery`). It decides nothing about queues: that is for
`storage` and for those who have the definitions.

This room knows `layout` and `log`.
"""
