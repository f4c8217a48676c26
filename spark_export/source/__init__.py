"""`spark.read` and `spark.readStream`: the classes that Spark calls to read queues.

Begin with `source` for batches and `stream` for streams. `stores` makes the snapshot, from a
directory or a node; `partition` is the input of a task; `stream_offsets` says how far a stream has
read.
"""
