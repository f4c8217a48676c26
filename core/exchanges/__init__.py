"""Exchanges and bindings: they decide which queues a message goes to.

Theory. An exchange has bindings and a type, which decides how a message is compared with them: by
its key (direct), by the words of its key (`topic`), by its `headers`, not at all (fanout), or by a
hash of its key (`consistent_hash`). `routing` follows bindings from exchange to exchange and
alternate exchanges, and finds each queue once. `removal` says which bindings and auto-delete
exchanges are deleted together with a queue or exchange. `delay` and `federation_hops` read the
headers of delayed and federated messages; `recent_history` keeps the last messages of an exchange.

Begin with `exchange`, then `routing`. No module here knows what a queue is.
"""
