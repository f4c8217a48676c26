"""The tools of operators: the `warren` command line, the management API and the load generator."""
