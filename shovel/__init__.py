"""Shovels: they move messages from a queue or exchange of one broker to another broker.

A shovel is a runtime parameter of component `shovel`. `definition.py` says what such a parameter
may be, `uri.py` what an address may be. `transfer.py` decides what becomes of each message, without
a socket; `worker.py` runs one shovel between two connections; `shovels.py` runs those of a node,
and sees to it that each runs at one node of the cluster.

This house knows `client` and the interfaces of `core`.
"""
