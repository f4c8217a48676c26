"""AMQP 0-9-1 on the wire: what clients send and what they are sent.

Theory. Each connection is a state machine without I/O. The shell (`server`) gives it the octets
that a socket received, and writes the octets that it puts out. `connection` cuts the octets into
frames. Publishes that have arrived complete and basic.ack are recognised by their octets and served
many at a time; every other method becomes an object, and one function serves it. `core` decides
what a method does; this house reads its arguments, calls `core` and writes the answer. `core`
raises exceptions for what it refuses, and `errors` turns these into the reply codes of AMQP.

| where to look | for |
|---|---|
| `server`, `accepting`, `tls_session`, `proxy_preface`, `proxy_header` | sockets; the shell |
| `connection` | octets in, octets out: frames, closing, back-pressure; begin here |
| `state`, `connection_methods`, `handshake`, `sasl`, `certificate` | from the header to open |
| `channel` | the state of a channel: content that arrives, delivery tags, verdicts |
| `channel_methods` | which function serves which method of a channel |
| `waiting_methods` | methods that wait, as for another node, and what waits behind them |
| `exchange_methods`, `queue_methods`, `basic_methods`, `mode_methods` | these functions |
| `publish_stream`, `publishing` | publishes: recognising them, and where they go |
| `gathered_publishes` | publishes: handing them over together |
| `consumer`, `reply_consumer` | deliveries: messages to frames |
| `confirms`, `transaction`, `held_output` | confirms, commits, replies that wait for the disk |
| `verdict`, `settling`, `ack_stream` | what clients say of messages they got |
| `delivery_limit`, `delivery_timeout` | global prefetch; clients that never acknowledge |
| `blocking` | publishers that wait during an alarm |
| `heartbeat`, `guarded_clock` | timers of a connection |
| `leaving` | the end of channels, many at once |
| `starting` | clients that come while the node recovers |
| `frames`, `methods`, `field_table`, `properties` | octets: frames, arguments, tables, headers |
| `content_codec`, `added_header`, `death_headers` | edits of content headers, for `core` |
| `errors`, `names`, `peer`, `channel_owner` | reply codes; names; the client; an interface |
"""

if __name__ != "warren.amqp":
    # The repository root is on sys.path, and this directory was found under py-amqp's name.
    raise ImportError("this is warren.amqp; at the repository root, run python with -P")
