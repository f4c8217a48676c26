"""Regular expressions of users, searched within bounds.

Theory. Patterns of policies and permissions are written for PCRE and come from users, so neither
compiling nor searching one may hold up the node. `pattern` translates and compiles, `matcher`
searches within a bounded time, `stored_patterns` compiles those of stored definitions when they
are first needed.
"""
