"""`warren migrate`: moves definitions and messages from one broker to another while both run.

The source and the target are RabbitMQ 3.x or Warren, in either direction; the code here does not
distinguish them. Definitions are moved by the management API (`definitions.py`), messages by AMQP,
one queue after the other (`queue_move.py`).

A message is acknowledged at the source after the target has confirmed it. So at each moment it is
at the source, at the target, or at both; never at neither. The messages of the *window*
(`window.py`) are at both: published, and not known to be gone from the source. When a broker or a
connection dies, these messages may be doubled, and the report names them.

`run.py` goes through the queues, once or repeatedly; `report.py` tells the result for each queue.
"""
