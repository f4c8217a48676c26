"""log: the leader of a queue sends its batches straight to each mirror.

Theory. The leader keeps what it has broadcast in a *window* until every mirror has reported it. A
mirror says hello with the position (epoch, number) of the last batch it got; the leader sends what
comes after that, or refuses a mirror that its window does not reach back to. A mirror keeps the
same window, up to what the leader says is reported by all: so one that takes the lead can send the
others what they have not got of the leader before.

That a node has gone is seen by its link, or it says so itself. Nobody else is asked, and nothing is
written down: who is a mirror, and who leads, stands in the definition of the queue.

A mirror that has *voted* for another leader takes no more batches of its present one, so that what
it said it had stays true until the election is over. If the leader turns out to be alive, it
is told (`disputed`), and the next *ballot*, in the definition, makes the vote void.

| where to look | for |
|---|---|
| `window` | batches that somebody may lack |
| `messages` | what members tell each other, and its octets |
| `member` | what a member does, as a leader's and as a mirror's |
| `shell` | all members of a node: links, timers, frames |
"""
