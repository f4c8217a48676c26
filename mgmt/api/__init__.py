"""The endpoints of RabbitMQ's management API, a module for each kind of thing.

Each module has functions that answer one request each, and `ENDPOINTS`, which says at what paths
and to whom (management_api.md section 2).
"""
