"""Turns of the loop: a budget for each, work that goes on in later ones, and waiting.

Theory. All of a node runs on one loop, so no request may take long. `turns` gives work a budget and
continues it in later turns; `waiting` lets an operation wait for other nodes, or for a turn, and
costs nothing where it need not; `periodic` repeats a check; `deadline` is a timer that can be
moved.
"""
