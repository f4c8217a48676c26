"""`df.write` and `df.writeStream`: the classes that Spark calls to publish rows.

Begin with `sink`. `sink_options` and `sink_columns` check options and columns before a task begins;
`publish_frames` turns record batches into frames, `publisher_protocol` is a publisher without a
socket, and `amqp_publisher` has the socket.
"""
