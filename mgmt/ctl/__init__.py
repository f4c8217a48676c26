"""`warren ctl`: the command line of operators, with RabbitMQ's commands, outputs and exit codes.

A client of the node's HTTP API (`control_client.py`). Each family of commands has its module, in
which a command says what it is doing, asks the node and returns an answer; `command.py` finds the
command, `call.py` is what it is handed, `formats.py` prints what it returns.
"""
