"""`warren migrate`: takes definitions and messages from one broker to another while both run.

The source and the target are RabbitMQ 3.x or Warren, in either direction; nothing here knows which
of the two it speaks to. Definitions go through the management API (`definitions.py`), messages
over AMQP, one queue after the other (`queue_move.py`).

A message is acknowledged at the source after the target confirmed it. So at each moment it is at
the source, at the target, or at both; never at neither. At both are those of the *window*
(`window.py`): published, and not known to be gone from the source. When a broker or a connection
dies, the window is what may be doubled, and the report names it.

`run.py` goes through the queues, once or again and again; `report.py` says what became of each.
"""
