"""Turns records of a log into Arrow record batches.

`schema` defines the columns of a message. `decode` makes the batches of a unit: `props` finds the
properties of many messages at once, `header_tables` decodes each distinct table once,
`message_state` finds the messages out for acknowledgement.
"""
