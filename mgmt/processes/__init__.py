"""A broker of several processes on one machine: `warren server --processes N`.

Theory. Each process is an ordinary node of a cluster, in which the others are its other nodes: a
queue lives in one of them, and is used from the others over a link. What nodes find in etcd they
find here in a store that the supervisor has (`mirror/definitions/key_store.py`); in a cluster of
such machines they use its etcd. All listen at the same ports, and the kernel deals connections out.

The supervisor is the process that was started. It serves no client and touches no message: it
reserves the ports (`reserved_ports.py`), has the store and says how the processes are
(`supervisor_socket.py`), and starts each again that has ended (`child.py`, `deaths.py`). When it
ends, however that happens, so do they. `plan.py` says which process has which name, directory and
configuration. A process is told its configuration by its supervisor (`child_command.py`), so all
have the one that was read at the start.

Begin with `supervisor.py`.
"""
