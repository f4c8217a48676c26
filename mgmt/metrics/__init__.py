"""Metrics for Prometheus, under RabbitMQ's names, so that its dashboards work.

`routes` has the HTTP paths. `collect` gathers the values for a request, `families` says which
metrics there are, `grouping` adds up the values of many objects, and `exposition` writes the text.
`cluster` has the metrics of nodes in a cluster, `merging` joins the texts of several processes.
"""
