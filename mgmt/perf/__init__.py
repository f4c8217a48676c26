"""`warren perf`: a load generator for any AMQP 0-9-1 broker.

The command reads a `Scenario` and hands it to the conductor in `run.py`. The conductor declares the
queues, starts processes for producers and for consumers, tells them when to start and to stop, and
adds up their measurements. `sender.py` decides what a producer sends next, and `settlement.py` what
a consumer acknowledges, both without a socket or a clock.
"""
