"""Turns of the loop: how much is done in one, what waits for the next, and what waits for others.

Theory. All of a node runs on one loop, so no request may take long. `turns` gives work a budget and
continues it in later turns; `waiting` lets an operation wait for other nodes, or for a turn, and
costs nothing where it need not; `periodic` repeats a check; `deadline` keeps the one timer for
what is to be done by a moment.
"""
