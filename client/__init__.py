"""An AMQP 0-9-1 client that moves messages unchanged.

`protocol.py` is the client as a state machine: octets in, events and octets out, without a socket
or a clock. `connection.py` puts it on a socket of asyncio. Content headers are octets throughout
(`content_header.py` edits them), so that every property and every type of a header field of a
message that is moved stays as its publisher sent it.

This house knows the field types of `core` at most, and nothing of the broker.
"""
