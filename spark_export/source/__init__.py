"""`spark.read` and `spark.readStream`: what Spark calls to read queues.

Begin with `source` for batches and `stream` for streams. `stores` makes the snapshot, from a
directory or a node; `partition` is what a task gets; `stream_offsets` says how far a stream is.
"""
