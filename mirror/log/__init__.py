"""log: the leader of a queue sends its batches straight to each mirror.

Theory. The leader keeps each batch that it has broadcast in a *window* until every mirror has
reported it. A mirror says hello with the position (epoch, number) of the last batch it got. The
leader sends the batches after that position; if its window begins later, it refuses the mirror. A
mirror keeps the same batches in a window of its own, until the leader says that all mirrors have
reported them. So a mirror that takes the lead can send the others the batches of the former leader
that they lack.

A member counts as gone when its link breaks or when it says so itself. No other member is asked,
and there is no record of the group: the definition of the queue names the leader and the mirrors.

A mirror that has *voted* for another leader takes no more batches of its present one, so that the
position it reported stays true until the election is over. If the leader turns out to be alive, it
is told (`disputed`), and the next *ballot*, in the definition, makes the vote void.

| where to look | for |
|---|---|
| `window` | batches that a mirror may lack |
| `messages` | messages between members, and their encoding |
| `member` | what a member does for a leader and for a mirror |
| `shell` | all members of a node: links, timers, frames |
"""
