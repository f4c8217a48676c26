"""Backups of data directories: messages and definitions of one moment, taken beside a running node.

Theory. A node starts from a few kinds of files. Log files and segments only grow at their ends, and
the checkpoint says up to where segments count. So links to all files, together with their sizes,
are the state that a power failure at that moment would leave, and a node starts from it as it does
after a power failure. `moment.py` makes these links: if no checkpoint was written meanwhile,
everything the checkpoint needs is among them.

An archive keeps every file once, under the hash of its contents (`archive.py`). A backup is a list
of files; log files do not change, so the next backup copies only new files. `shelf.py` defines the
storage that an archive is kept on, and implements it for a directory; `remote_shelf.py` implements
it for places that pyarrow reaches. `restore.py` puts the files of a backup into an empty directory,
and `alone.py` makes that the data directory of a node without a cluster.

The house knows the names and formats of files (`persist/`) and the records of definitions, and
nothing else of the broker. Begin in `archive.py`.
"""
