"""Links: one TCP or TLS connection for each pair of nodes.

Theory. Either node may dial; where both did, `pairing` says which connection is the link. Both
prove that they know the secret of the cluster before they say who they are (`handshake`,
`records`), so a stranger learns nothing. Then frames (`frames`: a kind and at most 1 MiB) go both
ways, in order and without gaps, until the link goes down: what is lost is always a suffix.
Heartbeats find a peer that is silent. `protocol` is one end of a connection without I/O, `socket`
its shell, and `links` knows all connections of a node.

Begin with `ports`, which is all that other rooms see; simulations have a `NodeLinks` of their own.
"""
