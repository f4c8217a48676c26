"""Definitions: all that was declared and set on a node, as one JSON object and back again.

The format is that of RabbitMQ 3.10.8 (management_api.md section 4). `export.py` writes it,
`load.py` reads it with the help of `items.py` and `importer.py`, `at_start.py` reads it from files
when a node starts, `errors.py` says what can be wrong.
"""
