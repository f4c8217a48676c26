"""The interface between queues and the carriers of their batches; see `ports`.

A carrier brings what the leader of a queue broadcasts to the nodes that have mirrors, and says
which of them are there. There are two carriers: `gm`, a ring, and `log`, which sends straight from
the leader to each mirror. `batch` is the head of each batch, the same in both.
"""
