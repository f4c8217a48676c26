"""Operators look at the messages in queues, and have them moved, copied, replayed or deleted.

Theory. A message is named by its place: its level and its position. The level is the priority in a
queue with priorities, and otherwise 0. A message keeps its position until it leaves the queue, or
another node leads it. `looking` finds messages by place and filter and changes nothing. A `job`
takes the found messages out of the queue, and lets go of them when they are safe elsewhere; `jobs`
keeps all jobs of a node. `sources` selects what a job reads: the messages of a queue, or those that
the queue has retained.

The node that leads the queue does all of this, in slices, without a list of all messages.
"""
