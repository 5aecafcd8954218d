"""Every error that a caller can receive, grouped by who must act.

One table, :data:`ERRORS`, maps each class to its ``code``, its Flight status and its exit code
(tests/server/test_http_and_errors.py). The docstrings of the classes are the text of
``docs/errors.md`` (``make docs``): what the error means, then what to do. Errors of lower layers
are wrapped into these before they reach a caller. Messages carry values and never a source path,
a secret or a traceback.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal[
    "INVALID_ARGUMENT",
    "NOT_FOUND",
    "UNIMPLEMENTED",
    "UNAVAILABLE",
    "DEADLINE_EXCEEDED",
    "UNAUTHENTICATED",
    "PERMISSION_DENIED",
    "INTERNAL",
]


class IngesterError(Exception):
    """Base class of the errors that a caller can receive.

    Args:
        message: what is wrong, with values.
        retry_after_s: seconds after which a retry may succeed.
        details: further JSON fields for ``extra_info``.
    """

    def __init__(
        self,
        message: str,
        *,
        retry_after_s: float | None = None,
        details: dict[str, object] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after_s = retry_after_s
        self.details = details or {}


class ClientGone(Exception):
    """The client of a call has disconnected. Never sent to a caller."""


# The caller must change the request.


class BadRequest(IngesterError):
    """The request is malformed, or has an unknown column, a clashing type or a missing key.

    Change the request.
    """


class UnknownTable(IngesterError):
    """The namespace or the table does not exist.

    Check the name, or create the table.
    """


class NotAvailable(IngesterError):
    """The action or feature does not exist in this version, or the daemon lacks the transformer.

    Do without it, or ask the operator.
    """


# The caller may retry later.


class Refused(IngesterError):
    """A temporary refusal.

    Retry.
    """


class MemoryFull(Refused):
    """Memory is over the high watermark, or the namespace is over its quota or share of it.

    Retry after `retry_after_s`; `extra_info` names the `quota` or share, if that is the reason.
    """


class Saturated(Refused):
    """The flush queue is full, or an origin moved 64 times before its rows were flushed.

    Retry.
    """


class DiskFull(Refused):
    """The log's disk is full.

    Retry; the operator frees disk space.
    """


class TooManyStreams(Refused):
    """Too many answers are open at the daemon.

    Retry.
    """


class OverQuota(Refused):
    """The namespace has reached a quota, which the message names.

    Retry after `retry_after_s`, or ask for less; the operator may raise the quota.
    """


class LimitReached(Refused):
    """A limit of `[limits]` is reached for now; `extra_info` names it as `limit`.

    Retry after `retry_after_s`; the operator may raise the limit.
    """


class StoreUnreachable(Refused):
    """The object store is needed and cannot be reached.

    Retry.
    """


class StaleVersion(Refused):
    """The version is too old for a buffered tail.

    Load the version that `extra_info` names and ask again.
    """


class Superseded(Refused):
    """A newer stream or transaction of this origin has taken over.

    After a lost connection or a time-out it may be your own earlier call, served late: reopen once.
    Otherwise another client uses the origin: stop.
    """


class ReplacedByCopy(Refused):
    """A copy has replaced the table, possibly with other columns and another key.

    Reopen the stream, or restart the transaction, for the new table.
    """


class Stopping(Refused):
    """The daemon is shutting down, or still starting.

    Retry; the daemon may come back.
    """


class FencedOff(Refused):
    """A later process runs under this daemon's id.

    Reconnect.
    """


class OwnedElsewhere(Refused):
    """Another daemon owns this table's writes, or has this origin or sequence.

    Write to the daemon that `extra_info` names. If it names none, open a stream that begins with
    the refused sequence: rows in files then count as duplicates.
    """


class TooSlow(IngesterError):
    """A client or a transformer was too slow, a client was silent too long, or a deadline passed.

    Retry.
    """


# An operator must look.


class NotAuthenticated(IngesterError):
    """The request has no token, or one that is unknown, revoked or expired.

    Send a valid token.
    """


class AccessDenied(IngesterError):
    """The token is valid but lacks the right.

    Ask the operator for a token with more rights.
    """


class InternalFailure(IngesterError):
    """An unexpected error; the message has an id that is also in the log.

    Tell the operator.
    """


@dataclass(frozen=True, slots=True)
class ErrorKind:
    """The outside view of an error class."""

    code: str
    status: Status
    exit_code: int


ERRORS: dict[type[IngesterError], ErrorKind] = {
    BadRequest: ErrorKind("invalid", "INVALID_ARGUMENT", 1),
    UnknownTable: ErrorKind("not_found", "NOT_FOUND", 1),
    NotAvailable: ErrorKind("unimplemented", "UNIMPLEMENTED", 1),
    Refused: ErrorKind("unavailable", "UNAVAILABLE", 4),
    MemoryFull: ErrorKind("memory", "UNAVAILABLE", 4),
    Saturated: ErrorKind("saturated", "UNAVAILABLE", 4),
    DiskFull: ErrorKind("disk_full", "UNAVAILABLE", 4),
    TooManyStreams: ErrorKind("limit", "UNAVAILABLE", 4),
    OverQuota: ErrorKind("limit", "UNAVAILABLE", 4),
    LimitReached: ErrorKind("limit", "UNAVAILABLE", 4),
    StoreUnreachable: ErrorKind("store", "UNAVAILABLE", 4),
    StaleVersion: ErrorKind("stale", "UNAVAILABLE", 4),
    Superseded: ErrorKind("superseded", "UNAVAILABLE", 4),
    ReplacedByCopy: ErrorKind("made_anew", "UNAVAILABLE", 4),
    Stopping: ErrorKind("stopping", "UNAVAILABLE", 4),
    FencedOff: ErrorKind("fenced", "UNAVAILABLE", 4),
    OwnedElsewhere: ErrorKind("owner", "UNAVAILABLE", 4),
    TooSlow: ErrorKind("timeout", "DEADLINE_EXCEEDED", 1),
    NotAuthenticated: ErrorKind("unauthenticated", "UNAUTHENTICATED", 1),
    AccessDenied: ErrorKind("forbidden", "PERMISSION_DENIED", 1),
    InternalFailure: ErrorKind("internal", "INTERNAL", 1),
    IngesterError: ErrorKind("internal", "INTERNAL", 1),
}


def limit_facts(limit: str, most: int, found: int) -> dict[str, object]:
    """Return the details of a limit error: the setting, its value, and the value found.

    Errors with these details are counted in ``ingester_limit_refused_total{limit}``. The setting is
    one of ``ingester.observability.metrics.LIMITS``, with its section: ``query.max_filter_terms``.
    """
    return {"limit": limit, "most": most, "found": found}


def limit_of(error: IngesterError) -> str | None:
    """Return the name in ``[limits]`` or ``[query]`` of an error's setting, if it has one."""
    limit = error.details.get("limit")
    if not isinstance(limit, str) or not limit.startswith(("limits.", "query.")):
        return None
    return limit.partition(".")[2]


def kind_of(error: IngesterError) -> ErrorKind:
    """Return the outside view of an error."""
    return ERRORS[type(error)]
