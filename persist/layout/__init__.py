"""The layout of the files of the message storage, down to every byte.

Theory. `format` has the records and batches of the log and turns them into octets and back;
`envelopes` the part of a record that says everything about a message but its body;
`segment` has the files of a queue's index, 16384 positions in each. Nothing here reads or writes a
file. `docs/storage-format.md` says the same in prose, and a test compares both.

This room knows no other room of `persist`.
"""
