"""The meaning of an S3 server's answer, whichever of several forms it comes in.

Servers refuse a conditional create as 412 with or without the condition's name, as 409 while
another is under way, or as a plain 400; s3fs turns these into ``FileExistsError``,
``OSError(EINVAL)`` and others. So the answer's own code and status decide, and the exception's
type only where there is no answer.
"""

from __future__ import annotations

import errno
from enum import Enum, auto
from typing import Any

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConfigNotFound,
    ConfigParseError,
    EndpointProviderError,
    NoCredentialsError,
    ParamValidationError,
    PartialCredentialsError,
    ProfileNotFound,
    ValidationError,
)

from persist.store.contract import (
    NotFound,
    StoreDenied,
    StoreError,
    StoreFull,
    StoreUnavailable,
    StoreUnsuitable,
)


class Verdict(Enum):
    """The meaning of an answer for the caller."""

    MISSING = auto()  # no such key
    NO_BUCKET = auto()
    EXISTS = auto()  # the condition did not hold
    CONFLICT = auto()  # another conditional write was under way; nothing is decided
    INVALID = auto()  # a plain "bad request": of a conditional create, perhaps EXISTS
    DENIED = auto()
    FULL = auto()
    ELSEWHERE = auto()  # the bucket lives in another region
    UNABLE = auto()  # the server does not implement this
    NOT_ASKED = auto()  # the client cannot be made of its settings
    AWAY = auto()


_BY_CODE = {
    "NoSuchBucket": Verdict.NO_BUCKET,
    "InvalidBucketName": Verdict.NO_BUCKET,
    "PreconditionFailed": Verdict.EXISTS,
    "ConditionalRequestConflict": Verdict.CONFLICT,
    "ExpiredToken": Verdict.DENIED,
    "InvalidToken": Verdict.DENIED,
    "TokenRefreshRequired": Verdict.DENIED,
    "QuotaExceeded": Verdict.FULL,
    "XMinioAdminBucketQuotaExceeded": Verdict.FULL,
    "XMinioStorageFull": Verdict.FULL,
    "AuthorizationHeaderMalformed": Verdict.ELSEWHERE,
    "RequestTimeout": Verdict.AWAY,
    "SlowDown": Verdict.AWAY,
}
_BY_STATUS = {
    301: Verdict.ELSEWHERE,
    307: Verdict.ELSEWHERE,
    400: Verdict.INVALID,
    401: Verdict.DENIED,
    403: Verdict.DENIED,
    404: Verdict.MISSING,
    405: Verdict.UNABLE,
    409: Verdict.CONFLICT,
    412: Verdict.EXISTS,
    501: Verdict.UNABLE,
    507: Verdict.FULL,
}
_ERRORS: dict[Verdict, type[StoreError]] = {
    Verdict.DENIED: StoreDenied,
    Verdict.FULL: StoreFull,
    Verdict.UNABLE: StoreUnsuitable,
    Verdict.INVALID: StoreError,
}
_NO_CLIENT = (
    *(ProfileNotFound, ConfigNotFound, ConfigParseError),
    *(EndpointProviderError, ValidationError),
)
# What botocore says of options without a type of its own.
_NO_CLIENT_TEXTS = ("Invalid endpoint: ", "unexpected keyword argument")


def verdict_of(exc: Exception) -> Verdict:
    """The meaning of ``exc``, raised by a call through s3fs. Unknown things are ``AWAY``."""
    answer = _answer(exc)
    if answer is not None:
        by_code = _BY_CODE.get(str(answer.get("Error", {}).get("Code")))
        status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        return by_code or _BY_STATUS.get(status, Verdict.AWAY)
    if isinstance(exc, NoCredentialsError | PartialCredentialsError | PermissionError):
        return Verdict.DENIED
    if isinstance(exc, FileExistsError):
        return Verdict.EXISTS
    if isinstance(exc, FileNotFoundError):
        return Verdict.MISSING
    if isinstance(exc, ParamValidationError):
        return Verdict.UNABLE
    if isinstance(exc, OSError) and exc.errno == errno.EINVAL:
        return Verdict.INVALID
    if isinstance(exc, _NO_CLIENT):
        return Verdict.NOT_ASKED
    said = str(exc) if isinstance(exc, ValueError | TypeError) else ""
    return Verdict.NOT_ASKED if any(text in said for text in _NO_CLIENT_TEXTS) else Verdict.AWAY


def to_error(verdict: Verdict, exc: Exception, url: str, path: str | None) -> StoreError:
    """The error to raise for a call about ``path`` (``None``: the bucket) of the store ``url``."""
    where = url if path is None else f"{url}/{path}"
    cause = f"{where}: {_cause(exc)}"
    if verdict is Verdict.MISSING:
        return NotFound(path) if path is not None else StoreUnsuitable(f"{url}: no such bucket")
    if verdict is Verdict.NO_BUCKET:
        return StoreUnsuitable(f"{url}: there is no such bucket; create it first")
    if verdict is Verdict.ELSEWHERE:
        return StoreUnsuitable(f"{cause} (is the region right?)")
    if verdict is Verdict.NOT_ASKED:
        return StoreUnsuitable(
            f"{cause}: no server was asked; correct store_options, or what the AWS_… variables and"
            " files say. An endpoint begins with http:// or https://"
        )
    return _ERRORS.get(verdict, StoreUnavailable)(cause)


def _answer(exc: BaseException | None) -> dict[str, Any] | None:
    """The server's parsed answer: s3fs hangs botocore's error below its own."""
    while exc is not None:
        if isinstance(exc, ClientError):
            return dict(exc.response)
        exc = exc.__cause__
    return None


def _cause(exc: Exception) -> str:
    answer = _answer(exc)
    if answer is not None:
        error = answer.get("Error", {})
        status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode")
        if error.get("Code") == "RequestTimeTooSkewed":
            return "the clocks of the server and of this machine are too far apart; correct them"
        return f"the server answered {status} {error.get('Code')}: {error.get('Message')}"
    if isinstance(exc, TimeoutError):
        return "no answer in time"
    if isinstance(exc, BotoCoreError | OSError):
        return str(exc) or type(exc).__name__
    return f"{type(exc).__name__}: {exc}"
