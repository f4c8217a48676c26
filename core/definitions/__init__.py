"""Definitions: the stored records of queues, exchanges, bindings, users, policies and the rest.

Theory. Each kind of definition is a record (`records`) under a path. A store of definitions keeps
all of them in a table in memory, from which every read is answered (`definition_table`), and
writes changes somewhere else: into LMDB (`persist/definitions/metadata.py`), into etcd
(`mirror/definitions/`), or nowhere (`volatile_metadata`). In a cluster each node also keeps a copy
(`definition_replica`). `record_format` turns a record into
octets; `validation` refuses values that an operator may not set.
"""
