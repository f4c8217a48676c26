"""A black-box conformance suite for brokers that speak AMQP 0-9-1 the way RabbitMQ 3.10 does.

It knows a broker only by its URL. It must pass against RabbitMQ 3.10.8: a test that fails there
is a wrong test. Run it with pytest (`--broker`, `--management`), or from code with
`warren.compat_tests.runner.run`.
"""
