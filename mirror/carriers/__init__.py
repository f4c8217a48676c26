"""What every carrier is to the queues it carries batches for; see `ports`.

A carrier brings what the leader of a queue broadcasts to the nodes that have mirrors, and says who
of them is there. There are two: `gm`, a ring, and `log`, straight from the leader to each mirror.
"""
