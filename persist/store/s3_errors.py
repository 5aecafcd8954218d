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
    NotFound,
    StoreDenied,
    StoreError,
    StoreFull,
    StoreUnavailable,
    StoreUnsuitable,
)


class Answer(Enum):
    """What an answer means for the caller."""

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
    "NoSuchBucket": Answer.NO_BUCKET,
    "InvalidBucketName": Answer.NO_BUCKET,
    "PreconditionFailed": Answer.EXISTS,
    "ConditionalRequestConflict": Answer.CONFLICT,
    "ExpiredToken": Answer.DENIED,
    "InvalidToken": Answer.DENIED,
    "TokenRefreshRequired": Answer.DENIED,
    "QuotaExceeded": Answer.FULL,
    "XMinioAdminBucketQuotaExceeded": Answer.FULL,
    "XMinioStorageFull": Answer.FULL,
    "AuthorizationHeaderMalformed": Answer.OTHER_REGION,
    "RequestTimeout": Answer.UNREACHABLE,
    "SlowDown": Answer.UNREACHABLE,
}
_BY_STATUS = {
    301: Answer.OTHER_REGION,
    307: Answer.OTHER_REGION,
    400: Answer.INVALID,
    401: Answer.DENIED,
    403: Answer.DENIED,
    404: Answer.MISSING,
    405: Answer.NOT_IMPLEMENTED,
    409: Answer.CONFLICT,
    412: Answer.EXISTS,
    501: Answer.NOT_IMPLEMENTED,
    507: Answer.FULL,
}
_ERRORS: dict[Answer, type[StoreError]] = {
    Answer.DENIED: StoreDenied,
    Answer.FULL: StoreFull,
    Answer.NOT_IMPLEMENTED: StoreUnsuitable,
    Answer.INVALID: StoreError,
}
_NO_CLIENT = (
    *(ProfileNotFound, ConfigNotFound, ConfigParseError),
    *(EndpointProviderError, ValidationError),
)
# botocore's messages about bad options that have no exception type.
_NO_CLIENT_TEXTS = ("Invalid endpoint: ", "unexpected keyword argument")


def answer_of(exc: Exception) -> Answer:
    """The meaning of ``exc``, raised by a call through s3fs; ``UNREACHABLE`` if it is not known."""
    answer = _response_of(exc)
    if answer is not None:
        by_code = _BY_CODE.get(str(answer.get("Error", {}).get("Code")))
        status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        return by_code or _BY_STATUS.get(status, Answer.UNREACHABLE)
    if isinstance(exc, NoCredentialsError | PartialCredentialsError | PermissionError):
        return Answer.DENIED
    if isinstance(exc, FileExistsError):
        return Answer.EXISTS
    if isinstance(exc, FileNotFoundError):
        return Answer.MISSING
    if isinstance(exc, ParamValidationError):
        return Answer.NOT_IMPLEMENTED
    if isinstance(exc, OSError) and exc.errno == errno.EINVAL:
        return Answer.INVALID
    if isinstance(exc, _NO_CLIENT):
        return Answer.NO_CLIENT
    said = str(exc) if isinstance(exc, ValueError | TypeError) else ""
    return (
        Answer.NO_CLIENT if any(text in said for text in _NO_CLIENT_TEXTS) else Answer.UNREACHABLE
    )


def to_error(answer: Answer, exc: Exception, url: str, path: str | None) -> StoreError:
    """The error to raise for a call about ``path`` (``None``: the bucket) of the store ``url``."""
    where = url if path is None else f"{url}/{path}"
    cause = f"{where}: {_cause(exc)}"
    if answer is Answer.MISSING:
        return NotFound(path) if path is not None else StoreUnsuitable(f"{url}: no such bucket")
    if answer is Answer.NO_BUCKET:
        return StoreUnsuitable(f"{url}: the bucket does not exist; create it first")
    if answer is Answer.OTHER_REGION:
        return StoreUnsuitable(f"{cause} (is the region right?)")
    if answer is Answer.NO_CLIENT:
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
