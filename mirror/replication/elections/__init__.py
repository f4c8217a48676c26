"""Which node leads a queue when its leader is gone, or comes back.

Theory. With the carrier `gm`, the members of the ring agree on who is gone, and the definition says
which mirror is next. With `log`, the mirrors hold an election: each says what it has, and the one
that has the most of those asked wins, if so many have answered that nothing confirmed can be
missing. In both cases the new leader writes itself into the definition, by compare-and-set.

| word | meaning |
|---|---|
| ballot | the number of an election, in the definition; a vote in an earlier one is void |

| where to look | for |
|---|---|
| `election` | who wins, from the answers that came: pure functions; begin here |
| `election_calls` | how the answers go from node to node |
| `whole_copies` | nodes that may have whole copies |
| `returned_leader` | leaders that come back |
| `new_queues` | new quorum queues whose leader is gone before others have copies |
| `leaderless` | why no node leads a queue, in words for operators |

This room knows `definition`. It has no messages: a copy answers for what it has.
"""
