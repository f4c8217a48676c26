"""Definitions on disk: exchanges, queues, bindings, users, policies and the rest.

Theory. Definitions are decided in memory (`core/definitions/`) and written to LMDB in the
background, transaction by transaction; replies that depend on one wait until it is on disk. LMDB
has no checksums, so each value gets one, the file is walked before LMDB may map it, and the newest
state has a second copy in a file of another kind.

| module | for |
|---|---|
| `metadata` | the definitions of a node by itself; begin here |
| `metadata_replica`, `key_file` | a copy of those of the cluster; those that processes share |
| `database`, `database_writer` | an LMDB file, and writing it in the background |
| `sealing`, `lmdb_file` | checksums of values, and a check of LMDB's own pages |
| `second_copy`, `repair` | the copy, and a new file made from it |
| `definitions_copy` | reading definitions beside a node |
| `deleted_queues` | notes of deletions; a start keeps messages of queues that have none |

This room knows `disk`.
"""
