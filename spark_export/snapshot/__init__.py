"""Snapshots: a state of a store that stays readable while the broker goes on.

Theory. A snapshot has hard links to the log files of a store and a copy of the store's index
(`creation`, `snapshot_file`); the broker removes nothing that a snapshot holds until its lease
ends. `plan` cuts the rows to read into units of work (`unit`), and `pinned_log` reads their
records. `entries_view` and `journal_entries` read the index as arrays. A `cursor` keeps the place
at which a stream goes on. `node_service` makes snapshots for readers on other machines, and
`served_extents` says which octets they may have. `options` and `filters` are a reader's wishes.
Begin with `snapshot`.
"""
