"""From records of a log to Arrow record batches.

`schema` says which columns a message has. `decode` makes the batches of a unit: `props` finds the
properties of many messages at once, `header_tables` decodes each distinct table once,
`message_state` says which messages are out for acknowledgement.
"""
