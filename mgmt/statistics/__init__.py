"""Statistics: rates and histories, computed from counts that the broker keeps anyway.

Theory. Every few seconds the `sampler` takes the counts of all objects that have changed, in
slices. A rate compares the counts of this moment with a sample some seconds old.

| module | for |
|---|---|
| `sampler` | takes the samples; begin here |
| `figures` | the counts that a sample has, for each kind of object |
| `track`, `history` | the samples of all objects of a kind, and of one object |
| `detail` | coarser samples when there are very many objects |
| `kept_histories`, `history_file` | histories that survive a restart |
| `latency` | how long messages wait, and how long clients take to acknowledge |
| `unacked_octets` | the octets of unacknowledged messages |
"""
