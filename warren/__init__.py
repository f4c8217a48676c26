"""Warren: an AMQP 0-9-1 broker that RabbitMQ clients use unchanged."""
