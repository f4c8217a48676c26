"""Backups of data directories: messages and definitions of one moment, taken beside a running node.

Theory. What a node needs to start is in few kinds of files. Log files and segments only grow at
their ends, and the checkpoint says up to where segments count; so links to all files, together
with their sizes, are what a power failure at that moment would leave, and a node starts from it as
it does then. `moment.py` takes that: if no checkpoint was written meanwhile, everything the
checkpoint needs is there.

An archive keeps every file once, under the hash of what is in it (`archive.py`). A backup is a list
of files; log files do not change, so the next backup copies only what is new. `shelf.py` says what
an archive asks of the place where it is, and does it in a directory, `remote_shelf.py` in what
pyarrow reaches. `restore.py` puts the files of a backup into an empty directory, and `alone.py`
makes it that of a node without a cluster.

The house knows the names and formats of files (`persist/`), and nothing of the broker. Begin in
`archive.py`.
"""
