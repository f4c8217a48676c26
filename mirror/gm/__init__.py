"""gm: a group of nodes in a ring, each of which gets what any of them broadcasts.

`member` opens with the theory and with what is promised; `docs/gm.md` is the longer page. Members
are state machines: events in, effects out. `shell` carries effects out, and is what the room
`replication` uses. Nothing here knows what is broadcast.
"""
