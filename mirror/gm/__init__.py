"""gm: a group of nodes in a ring, each of which gets the broadcasts of all.

`member` opens with the theory and the guarantees; `docs/gm.md` is the longer page, and names all
modules. Members are state machines: events in, effects out. `shell` carries the effects out, and is
the carrier that the room `replication` uses. Nothing here looks into the messages that are
broadcast.
"""
