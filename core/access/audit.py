"""The audit log: who deleted, purged or administered which object (logger `warren.audit`, at info).

One line for each deletion and purge and each change of policies, parameters, users, permissions
and virtual hosts, whichever way it came; declarations are not among them. The line is written when
the change is made.
"""

from __future__ import annotations

import logging

from warren.core.log_line import log_event

log = logging.getLogger("warren.audit")


def audit(who: str, action: str, /, **what: object) -> None:
    """Note that `who` did it: `queue_deleted`, `user_deleted`.

    `who` is the name of a user, or `warren-ctl` for the command line.
    `what` names the thing and, where known, the `vhost` and the `peer`. Secrets are not for it.
    """
    log_event(log, logging.INFO, action, who=who, **what)
