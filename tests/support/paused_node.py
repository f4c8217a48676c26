"""What a node says while it has lost etcd."""

from __future__ import annotations

from running_cluster import ClusterProcess

from warren.mgmt.ctl.errors import CtlError

WHY = "the node has lost etcd and waits for it"


def state(node: ClusterProcess) -> str:
    try:
        return str(node.asks("control", "app")["state"])
    except CtlError:
        return ""
