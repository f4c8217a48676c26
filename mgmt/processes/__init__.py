"""A broker of several processes on one machine: `warren server --processes N`.

Theory. Each process is an ordinary node of a cluster, and the others are the cluster's other nodes:
a queue lives in one of them, and is used from the others over a link. Instead of etcd the nodes use
a store that the supervisor has (`mirror/definitions/key_store.py`); if several such machines form a
cluster, they use its etcd. All processes listen at the same ports, and the kernel distributes
connections among them.

The supervisor is the process that was started. It serves no client and handles no message: it
reserves the ports (`reserved_ports.py`), has the store, reports the states of the processes
(`supervisor_socket.py`), and restarts processes that have ended (`child.py`, `deaths.py`). When it
ends, for whatever reason, the processes end too. `plan.py` gives each process its name, directory
and configuration. The supervisor passes a process its configuration (`child_command.py`), so all
have the one that was read at the start. With `load_definitions` the first process loads the files,
and the others wait for it (`loading.py`).

Begin with `supervisor.py`.
"""
