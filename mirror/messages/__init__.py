"""What parts of two nodes say to each other over a link.

`post` sorts frames by kind, cuts long payloads and puts them together again; `calls` are questions
with answers on top of it; `cargo` packs many messages of clients into one payload.
"""
