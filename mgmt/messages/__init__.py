"""Messages in hand: operators look at the messages in queues, and have them moved or deleted.

Theory. A message is named by its place: the level of its queue, which is its priority where the
queue has priorities, and its position, which it keeps for as long as it is in the queue. `looking`
finds messages by place and filter and changes nothing. A `job` takes those it finds out of the
queue, and gives them up when they are safe elsewhere; `jobs` are all jobs of a node. `sources` says
what a job goes through: the messages of a queue, or those it has retained.

All of it is done by the node that leads the queue. Work on a queue is in slices, and never needs a
list of all its messages.
"""
