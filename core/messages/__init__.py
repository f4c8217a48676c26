"""Messages: their parts, the answers to publishes, and counts and observers of messages.

Theory. A publish makes one `Envelope` (exchange, key, content header), shared by one `Message` for
each queue it goes to. A queue answers a publish with a `settlement`: taken, refused, or not known
yet. A message that moves from queue to queue leaves the old one only when the new ones have it
safe (`succession`). `message_observer` hears what happens to messages, and
`firehose` is one that sends copies of everything to its own exchange; `message_filter` is
the language in which operators say which messages they mean; `message_stats`, `ways_out` and
`stock` are counts.
"""
