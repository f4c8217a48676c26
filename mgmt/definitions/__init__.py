"""Definitions: everything declared and configured on a node, exported to and imported from JSON.

The format is that of RabbitMQ 3.10.8 (management_api.md section 4). `export.py` writes it,
`load.py` reads it with the help of `items.py` and `importer.py`, `at_start.py` reads it from files
when a node starts, `errors.py` has the reasons of refusals.
"""
