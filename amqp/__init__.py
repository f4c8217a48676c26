"""AMQP 0-9-1 on the wire: frames, methods, tables and the connection state machine."""

if __name__ != "warren.amqp":
    # The repository root is on sys.path, and this directory was found under py-amqp's name.
    raise ImportError("this is warren.amqp; at the repository root, run python with -P")
