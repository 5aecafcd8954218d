"""One table of everything that a caller can ask for, and the right that it needs.

Law of this file: pure, and a table. A name is that of a Flight method with what its request says it
is ("put sync", "get live", "action persist"), or of a route ("http /metrics"). What is not here is
refused, so that a new method, command, action or route is closed until it stands here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ingester.server.auth.rights import Right

Of = Literal["namespace", "shown", "caller", "open"]


@dataclass(frozen=True, slots=True)
class Need:
    """The need of one thing that can be asked for.

    Attributes:
        right: the right that is needed; None is any.
        of: ``namespace``: in the one that the request names; of a request that names none, in all.
            ``shown``: the same, but of a request that names none the answer is cut to those
            namespaces where the caller has the right.
            ``caller``: a valid token is enough. ``open``: no token is needed.
        setting: the word in ``auth.open`` that opens it.
        audited: whether the audit log has it when it was done, too.
    """

    right: Right | None
    of: Of = "namespace"
    setting: str = ""
    audited: bool = False


_OPEN, _CALLER = Need(None, "open"), Need(None, "caller")
# Schemas, sizes and standings help writers as well as readers.
_ANY, _READ, _WRITE = Need(None), Need("read"), Need("write")

NEEDS: dict[str, Need] = {
    "put write": _WRITE,
    "put delete": Need("write", audited=True),
    "put sync": _WRITE,
    "put copy": _WRITE,
    "get all": _READ,
    "get version": _READ,
    "get buffered": _READ,
    "get live": _READ,
    "info": _ANY,
    "schema": _ANY,
    "list_flights": Need(None, "shown"),
    "list_actions": _CALLER,
    "exchange": _CALLER,
    "action create_table": Need("write", audited=True),
    "action describe_table": _ANY,
    "action persist": Need("write", audited=True),
    # Without a namespace in the request: the right in all of them.
    "action drain": Need("admin", audited=True),
    "action origins": Need(None, "shown"),
    "action checkpoint_get": _ANY,
    "action checkpoint_put": _WRITE,
    "action checkpoint_delete": Need("write", audited=True),
    "action checkpoints": Need(None, "shown"),
    "action copy_finish": Need("write", audited=True),
    "action copy_abort": Need("write", audited=True),
    "action followers": _ANY,
    "action followers_prepare": Need("admin", audited=True),
    "action replication_report": _WRITE,
    # What debug events tell is of all namespaces.
    "action log_level": Need("admin", audited=True),
    "action store": _CALLER,
    "action status": Need(None, "shown"),
    "action status_list": Need(None, "shown"),
    "http /": _OPEN,
    "http /health/live": _OPEN,
    "http /health/ready": _OPEN,
    # Labels have the names of all namespaces.
    "http /metrics": Need("read", setting="metrics"),
    "http /api/status": Need(None, "shown", setting="status"),
    "http /api/tables/{namespace}/{table}": _READ,
    "http /api/tables/{namespace}/{table}/{list}": _READ,
    "http /api/status/{list}": Need(None, "shown", setting="status"),
    "http /api/history": Need(None, "shown", setting="status"),
}
