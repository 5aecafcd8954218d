"""The errors of calls, by who must act: one class per row of the protocol's table.

    ClientError
    ├── InvalidRequest, NotFound, Unimplemented     change the request
    │     └── Forked                                change how the process is started
    ├── Unauthenticated, Forbidden                  use another token
    ├── Unavailable (.code, .retry_after_s)         retry later; nothing was changed (but "fenced")
    │     └── Restarted                             ask for the origin's position and continue there
    ├── TimedOut, Unreachable                       retry; a write may or may not have happened
    ├── UnknownOutcome, OriginClash                 check before writing again
    └── Internal                                    an operator must look; the message has a log id

Messages are the daemon's own, without the text that gRPC and Arrow add.
"""

import re
from typing import Any

import msgspec
import pyarrow as pa
from pyarrow import flight

# Refusals that end by themselves or with a restart of the daemon.
TRANSIENT_CODES = frozenset(
    {"memory", "saturated", "disk_full", "limit", "store", "stopping", "fenced", "unavailable"}
)
# Refusals at admission: the refused batch and later ones of the stream were not applied.
ADMISSION_CODES = frozenset({"memory", "saturated", "disk_full", "limit", "stopping"})
# Codes of a daemon that stops or refuses writes for long; a client of several uses another one.
GOING_CODES = frozenset({"stopping", "fenced", "unavailable", "disk_full"})


class ClientError(Exception):
    """Any failure of a call, with the protocol's ``code`` and the daemon's ``details``."""

    default_code = "unknown"

    def __init_subclass__(cls, code: str | None = None) -> None:
        cls.default_code = code or cls.default_code

    def __init__(
        self, message: str, *, code: str | None = None, details: dict[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.code = code or self.default_code
        self.details = details or {}

    @property
    def message(self) -> str:
        """The text of the error."""
        return str(self)

    @property
    def retry_after_s(self) -> float | None:
        """The daemon's suggested delay before a retry in seconds, or None."""
        value = self.details.get("retry_after_s")
        return float(value) if isinstance(value, int | float) else None


class InvalidRequest(ClientError, code="invalid"):
    """The request is malformed, or has an unknown column, a type clash or a missing key."""


class Forked(InvalidRequest, code="forked"):
    """The process was forked after a client was made, so gRPC does not work in it."""


class NotFound(ClientError, code="not_found"):
    """The namespace or table does not exist."""


class Unimplemented(ClientError, code="unimplemented"):
    """The daemon has no such action or feature."""


class Unauthenticated(ClientError, code="unauthenticated"):
    """The token is missing or invalid."""


class Forbidden(ClientError, code="forbidden"):
    """The token lacks the right."""


class Unavailable(ClientError, code="unavailable"):
    """Refused for now; nothing was changed. ``code`` says why, ``retry_after_s`` when to retry.

    With the code ``fenced``, another process has replaced the daemon, and a transaction or state
    that was sent to it may have been applied.
    """


class Restarted(Unavailable):
    """The daemon was restarted or replaced by another one; nothing was changed.

    It may have lost rows that were only in the former process's log.
    """


class TimedOut(ClientError, code="timeout"):
    """A deadline passed. The daemon may still execute the request."""


class Unreachable(ClientError, code="unreachable"):
    """There is no connection, or it was lost during the call."""


class UnknownOutcome(ClientError, code="unknown_outcome"):
    """A batch may have been applied or not; sending it again may duplicate its rows.

    It had no origin and the connection was lost before its answer, or its writer was stopped.
    """


class OriginClash(ClientError, code="origin_clash"):
    """Another writer used this origin and sequence, so the daemon treated the batch as a duplicate.

    The batch was not written. Give each writer its own origin, or pass ``first_sequence``.
    """


class Internal(ClientError, code="internal"):
    """The daemon failed; the message has an id from its log."""


# Most specific first: several of these derive from others.
_BY_TYPE: tuple[tuple[type[BaseException], type[ClientError]], ...] = (
    (flight.FlightUnavailableError, Unavailable),
    (flight.FlightTimedOutError, TimedOut),
    (flight.FlightUnauthenticatedError, Unauthenticated),
    (flight.FlightUnauthorizedError, Forbidden),
    (flight.FlightCancelledError, Unreachable),
    (flight.FlightError, Internal),
    (pa.ArrowKeyError, NotFound),
    (pa.ArrowNotImplementedError, Unimplemented),
    (pa.ArrowCancelled, Unreachable),
    (pa.ArrowInvalid, InvalidRequest),
    (pa.ArrowTypeError, InvalidRequest),
    (OSError, Unreachable),  # pyarrow's "server disconnect?" while writing
)
_BY_CODE = {
    kind.default_code: kind
    for kind in (InvalidRequest, NotFound, Unimplemented, Unauthenticated, Forbidden, TimedOut)
} | {Internal.default_code: Internal}

_WRAPPING = re.compile(r"^Flight (?:returned|RPC failed)[^:]*(?:, with message)?: ", re.DOTALL)
_NOISE = re.compile(
    r"\s*\.?\s*(?:Detail: (?:Python exception|Unavailable|Internal|Failed|Timed|Unauth)|"
    r"gRPC client debug context:|Client context:|Additionally, could not finish writing|"
    r"Traceback \(most recent call last\)).*",
    re.DOTALL,
)
_PYTHON_EXCEPTION = re.compile(r"Detail: Python exception: (invalid|not_found|unimplemented)\b")
_NO_CONNECTION = re.compile(
    r"failed to connect to all addresses; last error: \w+: (?:ipv[46]:)?(.*?): "
    r"(?:Failed to connect to remote host: )?(.*)",
    re.DOTALL,
)
_EXHAUSTED = re.compile(
    r"gRPC returned resource exhausted error.*?"
    r"(?:larger than max \((?P<size>\d+) vs\. (?P<most>\d+)\)|$)",
    re.DOTALL,
)
_TRANSPORT = re.compile(
    r"Stream removed|RST_STREAM|Socket closed|GOAWAY|Connection reset|Broken pipe|recvmsg|sendmsg"
)
# The server is not a Flight server, so a retry is useless. A proxy's 5xx is transient instead.
_WRONG_PORT = (
    (
        re.compile(r"http2 header with status: 4|http1\.x server", re.IGNORECASE),
        "the endpoint speaks HTTP and not Flight: use the port of `flight.listen` (8082 if not"
        " set), not that of `http.listen`",
    ),
    (
        re.compile(r"(?:SSL|TLS).*wrong version number", re.IGNORECASE | re.DOTALL),
        "the endpoint does not speak TLS: use grpc:// instead of grpc+tls://",
    ),
    (
        re.compile(r"missing selected ALPN", re.IGNORECASE),
        "the endpoint speaks TLS and not Flight: use the port of `flight.listen` (8082 if not set)",
    ),
)
# Only an operator can correct these, on either side.
_NOT_TRUSTED = (
    (
        re.compile(r"certificate.verify.failed: certificate has expired", re.IGNORECASE),
        "the daemon's certificate has expired",
    ),
    (
        re.compile(r"certificate.verify.failed: certificate is not yet valid", re.IGNORECASE),
        "the daemon's certificate is not valid yet, or the clock of this machine is wrong",
    ),
    (
        re.compile(r"certificate.verify.failed", re.IGNORECASE),
        "this client does not trust the signer of the daemon's certificate: pass the certificates"
        " of its authority as tls_ca (--tls-ca)",
    ),
    (
        re.compile(
            r"Peer name \S+ is not in peer certificate|Hostname Verification", re.IGNORECASE
        ),
        "the daemon's certificate is for another host name: connect to a name in the certificate",
    ),
)


def clean_message(text: str) -> str:
    """The daemon's own message inside an error of pyarrow."""
    sentence = _NOISE.sub("", _WRAPPING.sub("", text)).strip() or text.strip()
    return _NO_CONNECTION.sub(r"cannot connect to \1: \2", sentence)


def from_arrow(exc: BaseException) -> ClientError:
    """The typed error for an error of a pyarrow Flight call, which becomes its cause.

    A ClientError is returned unchanged.
    """
    if isinstance(exc, ClientError):
        return exc
    error = _typed(exc)
    error.__cause__ = exc
    return error


def of_older_daemon(error: ClientError, ack: str | None) -> ClientError:
    """The error; a clear one if a daemon of an earlier release refused the field ``ack``."""
    if ack is None or not (
        isinstance(error, InvalidRequest) and "unknown field `ack`" in str(error)
    ):
        return error
    clear = InvalidRequest(
        f"this daemon is too old for ack={ack!r}: it acknowledges what is on its disk; upgrade it,"
        " or leave ack out",
        details=error.details,
    )
    clear.__cause__ = error
    return clear


def is_unavailable(error: ClientError) -> bool:
    """Whether the daemon is unreachable or stopping, so that others are asked in its place."""
    return isinstance(error, Unreachable | TimedOut) or error.code in GOING_CODES


def never_connected(error: ClientError) -> bool:
    """Whether the call never reached the daemon's port, so no part of it can arrive later."""
    return isinstance(error, Unreachable) and str(error).startswith("cannot connect to ")


def _typed(exc: BaseException) -> ClientError:
    if isinstance(exc, pa.ArrowInvalid) and (cut := _EXHAUSTED.search(str(exc))):
        # gRPC's own refusal, before the daemon has seen the message.
        if cut["most"] is None:
            return Unreachable(
                "the daemon has no memory for more messages and the connection was cut"
            )
        return InvalidRequest(
            f"a message of {cut['size']} B exceeds the daemon's limit ({cut['most']} B):"
            " send smaller batches"
        )
    kind = next((ours for theirs, ours in _BY_TYPE if isinstance(exc, theirs)), Internal)
    details = _details(exc)
    message = details.get("message") or clean_message(str(exc))
    if kind is Unreachable:
        # HAProxy 2.6 ends a stream that the daemon refuses as cancelled. What the daemon said is
        # still there.
        if found := _PYTHON_EXCEPTION.search(str(exc)):
            details = {"code": found[1]} | details
        if "code" in details:
            kind = Unavailable
    if "code" in details:
        code = str(details["code"])
        return _BY_CODE.get(code, kind)(message, code=code, details=details)
    for code, patterns in (("endpoint", _WRONG_PORT), ("tls", _NOT_TRUSTED)):
        for pattern, meaning in patterns:
            if kind in (Unavailable, Unimplemented, Internal) and pattern.search(message):
                return InvalidRequest(f"{meaning} ({message})", code=code)
    # Without a code, the error comes from the transport and not from the daemon.
    if kind is Unavailable or (kind is Internal and _TRANSPORT.search(message)):
        kind = Unreachable
    return kind(message, details=details)


def _details(exc: BaseException) -> dict[str, Any]:
    raw = getattr(exc, "extra_info", None)
    if not raw:
        return {}
    try:
        return msgspec.json.decode(raw, type=dict[str, Any])
    except msgspec.DecodeError:
        return {}
