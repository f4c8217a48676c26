"""`warren ctl`: the command line of operators, with RabbitMQ's commands, outputs and exit codes.

It is a client of the node's HTTP API (`control_client.py`). Each family of commands has its module.
A command says what it does, asks the node and returns an answer; `command.py` finds the command,
`call.py` is its argument, `formats.py` prints its answer.
"""
