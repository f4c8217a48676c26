"""`warren perf`: a load generator for any AMQP 0-9-1 broker.

The command reads a `Scenario` and hands it to the conductor in `run.py`. That one declares the
queues, starts processes for producers and for consumers, tells them when to start and to stop,
and adds up what they measured. What a producer sends next and what a consumer acknowledges is
decided without a socket or a clock, in `sender.py` and `settlement.py`.
"""
