"""The broker itself: virtual hosts, exchanges, queues, consumers, policies, access.

Nothing here opens a socket or a file, or reads a clock. `ports` has the interfaces for that, and
other houses implement them; so all of `core` also runs in tests and simulations.

Rooms, each of which may use only those below it in this list; `queues`, `exchanges`, `access` and
`resources` know nothing of each other:

| room | answers |
|---|---|
| `node` | What do all connections of a node share? One `Node` holds everything else. |
| `vhosts` | What does a declaration, a binding, a deletion change in a virtual host? |
| `policies` | Which policy does an object get, and what does it change there? |
| `queues` | Which consumer gets a message, and what becomes of one that no consumer gets? |
| `exchanges` | Which bindings does a message match? |
| `access` | Who may log in, who may do what, and how much of it? |
| `resources` | Does memory or disk run short, and who has to wait then? |
| `backing` | Where are the messages of a queue kept, in memory or in a store? |
| `tracing` | What became of a message, for those that rules select? |
| `messages` | What is a message, and what is counted and said about messages? |
| `patterns` | How are regular expressions of users searched within bounds? |
| `definitions` | What is stored about a queue, an exchange, a user, a policy? |
| `scheduling` | How much may be done in one turn of the loop, and who waits for what? |

Below them stand `ports`, `field` (AMQP values with their types), `erlang_text` (how RabbitMQ's
error texts show such values), `errors` and `log_line`.

A publish goes this way: `amqp` asks the `VirtualHost` for the queues of a routing key, and it asks
`exchanges`; `Queue.publish` hands the message to a consumer or to the backing queue, which keeps it
and says when it is safe.
"""
