"""What an operator touches: the `warren` command line and the load generator."""
