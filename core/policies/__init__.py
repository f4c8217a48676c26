"""Policies and parameters: what operators set for many objects at once.

Theory. Of all policies of a virtual host whose pattern matches the name of an object, the one with
the highest priority counts, and an operator policy limits what it says. `policy` finds it and
works out the settings of a queue or exchange from policy and arguments together;
`policy_definition` says which keys and values a policy may have; `parameters` are values of other
components (shovels, federation, limits), validated by the component.
"""
