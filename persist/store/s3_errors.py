"""Interprets the answers of S3 servers, which differ in form.

Servers refuse a conditional create with 412, with or without the name of the condition, with 409
while another create is under way, or with a plain 400. s3fs turns these into ``FileExistsError``,
``OSError(EINVAL)`` and others. Therefore the code and status of the answer decide, and the type of
the exception only if there is no answer.
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
    ObjectNotFound,
    StoreDenied,
    StoreError,
    StoreFull,
    StoreUnavailable,
    StoreUnsuitable,
)


class S3Answer(Enum):
    """The meaning of an answer for the caller."""

    MISSING = auto()  # no such key
    NO_BUCKET = auto()
    EXISTS = auto()
    CONFLICT = auto()  # another conditional write is under way; nothing is decided
    INVALID = auto()  # "bad request"; for a conditional create perhaps EXISTS
    DENIED = auto()
    FULL = auto()
    OTHER_REGION = auto()
    NOT_IMPLEMENTED = auto()
    NO_CLIENT = auto()  # the settings make no client
    UNREACHABLE = auto()


_BY_CODE = {
    "NoSuchBucket": S3Answer.NO_BUCKET,
    "InvalidBucketName": S3Answer.NO_BUCKET,
    "PreconditionFailed": S3Answer.EXISTS,
    "ConditionalRequestConflict": S3Answer.CONFLICT,
    "ExpiredToken": S3Answer.DENIED,
    "InvalidToken": S3Answer.DENIED,
    "TokenRefreshRequired": S3Answer.DENIED,
    "QuotaExceeded": S3Answer.FULL,
    "XMinioAdminBucketQuotaExceeded": S3Answer.FULL,
    "XMinioStorageFull": S3Answer.FULL,
    "AuthorizationHeaderMalformed": S3Answer.OTHER_REGION,
    "RequestTimeout": S3Answer.UNREACHABLE,
    "SlowDown": S3Answer.UNREACHABLE,
}
_BY_STATUS = {
    301: S3Answer.OTHER_REGION,
    307: S3Answer.OTHER_REGION,
    400: S3Answer.INVALID,
    401: S3Answer.DENIED,
    403: S3Answer.DENIED,
    404: S3Answer.MISSING,
    405: S3Answer.NOT_IMPLEMENTED,
    409: S3Answer.CONFLICT,
    412: S3Answer.EXISTS,
    501: S3Answer.NOT_IMPLEMENTED,
    507: S3Answer.FULL,
}
_ERRORS: dict[S3Answer, type[StoreError]] = {
    S3Answer.DENIED: StoreDenied,
    S3Answer.FULL: StoreFull,
    S3Answer.NOT_IMPLEMENTED: StoreUnsuitable,
    S3Answer.INVALID: StoreError,
}
_NO_CLIENT = (
    *(ProfileNotFound, ConfigNotFound, ConfigParseError),
    *(EndpointProviderError, ValidationError),
)
# botocore's messages about bad options that have no exception type.
_NO_CLIENT_TEXTS = ("Invalid endpoint: ", "unexpected keyword argument")


def answer_of(exc: Exception) -> S3Answer:
    """The meaning of ``exc``, raised by a call through s3fs; ``UNREACHABLE`` if it is not known."""
    answer = _response_of(exc)
    if answer is not None:
        by_code = _BY_CODE.get(str(answer.get("Error", {}).get("Code")))
        status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        return by_code or _BY_STATUS.get(status, S3Answer.UNREACHABLE)
    if isinstance(exc, NoCredentialsError | PartialCredentialsError | PermissionError):
        return S3Answer.DENIED
    if isinstance(exc, FileExistsError):
        return S3Answer.EXISTS
    if isinstance(exc, FileNotFoundError):
        return S3Answer.MISSING
    if isinstance(exc, ParamValidationError):
        return S3Answer.NOT_IMPLEMENTED
    if isinstance(exc, OSError) and exc.errno == errno.EINVAL:
        return S3Answer.INVALID
    if isinstance(exc, _NO_CLIENT):
        return S3Answer.NO_CLIENT
    said = str(exc) if isinstance(exc, ValueError | TypeError) else ""
    return (
        S3Answer.NO_CLIENT
        if any(text in said for text in _NO_CLIENT_TEXTS)
        else S3Answer.UNREACHABLE
    )


def to_error(answer: S3Answer, exc: Exception, url: str, path: str | None) -> StoreError:
    """The error to raise for a call about ``path`` (``None``: the bucket) of the store ``url``."""
    where = url if path is None else f"{url}/{path}"
    cause = f"{where}: {_cause(exc)}"
    if answer is S3Answer.MISSING:
        return (
            ObjectNotFound(path) if path is not None else StoreUnsuitable(f"{url}: no such bucket")
        )
    if answer is S3Answer.NO_BUCKET:
        return StoreUnsuitable(f"{url}: the bucket does not exist; create it first")
    if answer is S3Answer.OTHER_REGION:
        return StoreUnsuitable(f"{cause} (is the region right?)")
    if answer is S3Answer.NO_CLIENT:
        return StoreUnsuitable(
            f"{cause}: no request was sent; correct store_options, the AWS_… variables or the AWS"
            " files. An endpoint begins with http:// or https://"
        )
    return _ERRORS.get(answer, StoreUnavailable)(cause)


def _response_of(exc: BaseException | None) -> dict[str, Any] | None:
    """The server's parsed answer; s3fs chains botocore's error below its own."""
    while exc is not None:
        if isinstance(exc, ClientError):
            return dict(exc.response)
        exc = exc.__cause__
    return None


def _cause(exc: Exception) -> str:
    answer = _response_of(exc)
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
