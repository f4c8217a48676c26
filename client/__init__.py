"""An AMQP 0-9-1 client that moves messages unchanged.

`protocol.py` is the client as a state machine: octets in, events and octets out, without a socket
or a clock. `connection.py` puts it on a socket of asyncio. `handshake.py` and `frames.py` are also
for the client that publishes for Spark (`spark_export/sink`). Content headers stay octets
throughout (`content_header.py` edits them), so that every property and the type of every header
field of a moved message stay as its publisher sent them.

This house may import the field types of `core`, and nothing else of the broker.
"""
