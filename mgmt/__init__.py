"""Management: what operators use to see and to run a broker.

Theory. The HTTP API is the centre: the web pages, `warren ctl` and other tools are its clients. It
runs on the node's own loop, so requests work in slices, and messages do not wait for them. Its
answers come from the objects of `core` and from `statistics`; a node of a cluster asks the others
for their part (`peers`) and answers what they ask (`passed_requests`).

| room | for |
|---|---|
| `api` | the endpoints of the HTTP API, a module for each kind of object |
| `http` | what endpoints share: listeners, logins, lists, errors; begin in `server` |
| `static` | the web pages |
| `statistics` | rates and histories |
| `metrics` | metrics for Prometheus |
| `definitions` | export and import of definitions |
| `messages` | looking at the messages in queues, and moving them |
| `ctl` | `warren ctl` |
| `migrate` | `warren migrate` |
| `perf` | `warren perf` |
| `processes` | `warren server --processes N` |

Beside the rooms stand the commands. `command_line` finds the module of a command, such as
`server_command`, `store_command` or `backup_command`. The other modules are parts of the API that
several rooms use; `managed_node` is the node as all of them see it.
"""
