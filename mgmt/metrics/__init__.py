"""Metrics for Prometheus, under RabbitMQ's names, so that its dashboards work."""
