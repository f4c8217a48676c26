"""The endpoints of RabbitMQ's management API, a module for each kind of object.

Each module has handlers, which answer one request each, and `ENDPOINTS`, which gives their paths
and the rights they need (management_api.md section 2).
"""
