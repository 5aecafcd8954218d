"""Every refusal the daemon makes, by who must act: the caller, the caller later, an operator.

Law of this file: one table, :data:`ERRORS`, maps each error class to its ``code`` (what clients
switch on), its Flight status and its exit code. What a class means and who does what about it
stands at the class, and is what ``docs/errors.md`` says (``make docs``). Errors of lower layers are
wrapped into these where they meet a caller. Messages carry values and never a path of the source, a
secret or a traceback.
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
    """Root of everything that a caller may be told.

    Args:
        message: what was wrong, with values.
        retry_after_s: when a retry may help, in seconds.
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
    """The client of a call has gone, so that nobody is left to be answered: no caller is told."""


# The caller must change the request.


class InvalidRequest(IngesterError):
    """The request is malformed, or has an unknown column, a clashing type or a missing key.

    The caller changes the request.
    """


class UnknownTable(IngesterError):
    """The namespace or the table does not exist."""


class NotAvailable(IngesterError):
    """This version does not have the action or the feature, or the daemon not the transformer.

    The caller does without, or tells the operator.
    """


# The caller may retry later.


class Refused(IngesterError):
    """A passing reason, which a retry helps.

    The caller asks again.
    """


class MemoryFull(Refused):
    """Memory is over the high watermark.

    The caller asks again after `retry_after_s`.
    """


class Saturated(Refused):
    """The persist queue is full, or an origin has moved 64 times before its rows were in files.

    The caller asks again.
    """


class DiskFull(Refused):
    """The log's disk has no room.

    The caller asks again; the operator makes room.
    """


class TooManyStreams(Refused):
    """As many answers are under way as the daemon allows.

    The caller asks again.
    """


class OverQuota(Refused):
    """The namespace has as much as its quota, which the message names.

    The caller asks again after `retry_after_s`, or for less; the operator may raise the quota.
    """


class LimitReached(Refused):
    """A setting of `[limits]` is reached for now; `extra_info` has it as `limit`.

    The caller asks again after `retry_after_s`; the operator raises it.
    """


class StoreAway(Refused):
    """The store cannot be reached where it is needed now.

    The caller asks again.
    """


class StaleVersion(Refused):
    """The version is too old for a buffered tail.

    The caller loads the version that `extra_info` names, and asks again.
    """


class Superseded(Refused):
    """A newer stream or transaction of this origin has taken over.

    After a lost connection or a time-out it may be the caller's own older call, served late: open
    again, once; else stop, or find out who else writes.
    """


class MadeAnew(Refused):
    """The table was made anew by a copy, and may have other columns and another key.

    The caller opens its stream again, or begins its transaction again, for the table as it is now.
    """


class Stopping(Refused):
    """The daemon is shutting down, or still starting.

    The caller asks again; the daemon may come back.
    """


class FencedOff(Refused):
    """A later process runs under this identity.

    The caller connects anew.
    """


class OwnedElsewhere(Refused):
    """Another daemon takes this table's writes.

    The caller writes there.
    """


class TooSlow(IngesterError):
    """The client was too slow or silent for too long, or a transformer; or a deadline has passed.

    The caller asks again.
    """


# An operator must look.


class Unauthenticated(IngesterError):
    """The request has no token, or one that is unknown, revoked or expired.

    The caller sends a valid token.
    """


class Forbidden(IngesterError):
    """The token is valid and does not have the right.

    The caller asks the operator for a token with more rights.
    """


class InternalFailure(IngesterError):
    """Anything else; the message has an id that is in the log, too.

    The caller tells the operator.
    """


@dataclass(frozen=True, slots=True)
class ErrorKind:
    """How one class of error looks from outside."""

    code: str
    status: Status
    exit_code: int


ERRORS: dict[type[IngesterError], ErrorKind] = {
    InvalidRequest: ErrorKind("invalid", "INVALID_ARGUMENT", 1),
    UnknownTable: ErrorKind("not_found", "NOT_FOUND", 1),
    NotAvailable: ErrorKind("unimplemented", "UNIMPLEMENTED", 1),
    Refused: ErrorKind("unavailable", "UNAVAILABLE", 4),
    MemoryFull: ErrorKind("memory", "UNAVAILABLE", 4),
    Saturated: ErrorKind("saturated", "UNAVAILABLE", 4),
    DiskFull: ErrorKind("disk_full", "UNAVAILABLE", 4),
    TooManyStreams: ErrorKind("limit", "UNAVAILABLE", 4),
    OverQuota: ErrorKind("limit", "UNAVAILABLE", 4),
    LimitReached: ErrorKind("limit", "UNAVAILABLE", 4),
    StoreAway: ErrorKind("store", "UNAVAILABLE", 4),
    StaleVersion: ErrorKind("stale", "UNAVAILABLE", 4),
    Superseded: ErrorKind("superseded", "UNAVAILABLE", 4),
    MadeAnew: ErrorKind("made_anew", "UNAVAILABLE", 4),
    Stopping: ErrorKind("stopping", "UNAVAILABLE", 4),
    FencedOff: ErrorKind("fenced", "UNAVAILABLE", 4),
    OwnedElsewhere: ErrorKind("owner", "UNAVAILABLE", 4),
    TooSlow: ErrorKind("timeout", "DEADLINE_EXCEEDED", 1),
    Unauthenticated: ErrorKind("unauthenticated", "UNAUTHENTICATED", 1),
    Forbidden: ErrorKind("forbidden", "PERMISSION_DENIED", 1),
    InternalFailure: ErrorKind("internal", "INTERNAL", 1),
    IngesterError: ErrorKind("internal", "INTERNAL", 1),
}


def limit_facts(limit: str, most: int, found: int) -> dict[str, object]:
    """The details of an error of a limit: its setting, its value, and what was found.

    An error with them is counted in ``ingester_limit_refused_total{limit}``.
    """
    return {"limit": limit, "most": most, "found": found}


def limit_of(error: IngesterError) -> str | None:
    """The name in ``[limits]`` or ``[query]`` of the setting that an error is of, if any."""
    limit = error.details.get("limit")
    if not isinstance(limit, str) or not limit.startswith(("limits.", "query.")):
        return None
    return limit.partition(".")[2]


def kind_of(error: IngesterError) -> ErrorKind:
    """How this error looks from outside."""
    return ERRORS[type(error)]
