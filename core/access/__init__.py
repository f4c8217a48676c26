"""Logins, permissions, limits and quotas.

Theory. A user has a password hash, tags, and for each virtual host three patterns of permissions
(configure, write, read) and those of topics. `AccessControl` answers who may log in and who may do
what, for AMQP and HTTP alike. Limits and quotas are numbers of a virtual host or a user; a request
that would exceed one is refused, and the refusal names the limit. Nothing here knows a connection.

Begin with `access_control`. `password` makes and checks hashes. `limits` count connections,
channels and queues (`clients_elsewhere`: those at other nodes), `quotas` messages and octets;
`login_throttle` slows down guessing; `audit` is the log of who deleted what.
"""
