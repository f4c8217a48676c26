"""Exchanges and bindings: they decide which queues a message goes to.

Theory. An exchange has bindings and a type, which decides how a message is compared with them: by
its key (direct), by the words of its key (`topic`), by its `headers`, not at all (fanout), by a
hash of its key (`consistent_hash`), or by chance (x-random). `routing` follows bindings from
exchange to exchange and alternate exchanges, and finds each queue once. `removal` says which
bindings and auto-delete exchanges are deleted together with a queue or exchange. `message_headers`
decodes headers for bindings that ask; `delay` and `federation_hops` read those of delayed and
federated messages. `recent_history` keeps the last messages of an exchange.

Begin with `exchange`, then `routing`. No module here knows what a queue is.
"""
