"""Messages between parts of two nodes, over a link.

`post` sorts frames by kind, cuts long payloads and puts them together again. `calls` are questions
with answers, carried by `post`. `cargo` packs many messages of clients into one payload. `origin`
names the node that a publish comes from.
"""
