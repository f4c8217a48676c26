"""Links: one TCP or TLS connection for each pair of nodes.

Theory. Either node may dial; if both did, `pairing` decides which connection is the link. Both
prove that they know the secret of the cluster before they tell their identity (`handshake`,
`records`), so a stranger learns nothing. Then frames (`frames`: a kind and at most 1 MiB) go both
ways, in order and without gaps, until the link goes down: the frames lost are always a suffix.
Heartbeats detect a silent peer. `protocol` is one end of a connection without I/O, `socket` its
shell, and `links` manages all connections of a node. `traffic` counts
by peer, `limited_log` limits log lines about peers, and `tls` describes TLS failures.

Begin with `ports`: other rooms see nothing else. Simulations have a `NodeLinks` of their own.
"""
