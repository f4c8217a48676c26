"""Policies and parameters: settings of operators for many objects at once.

Theory. A policy applies to the queues and exchanges of its virtual host whose names its pattern
matches. If several policies match one object, the one with the highest priority applies. Operator
policies are chosen in the same way, and limit what the first policy says.

`policy` chooses the two policies of an object, and works out its settings from them and from its
arguments. `policy_definition` says which keys and values a policy may have, and
`retention_policy` what one of them means. `policy_set` finds the policies of a name. `parameters`
keeps the settings of shovels, federation and limits; each component checks its own values.
"""
