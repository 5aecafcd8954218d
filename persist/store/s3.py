"""Objects in a bucket of any S3 server that honours ``If-None-Match: *``, through s3fs.

Every write is one single PUT, never a multipart upload: some servers check the condition of a
multipart upload when it begins and overwrite when it ends. (S3 accepts up to 5 GiB in one PUT.)

A create stores a unique attempt id in the object's metadata. If the server answers "exists", the
object is looked at once: aiohttp and proxies repeat a PUT when a connection closes without an
answer, and the repeated PUT then meets its own first copy, which is a success.

Nothing else is retried here: callers decide when to try again, and learn at once that the store is
unreachable. Read time-outs alone do not bound a call, because they do not run while a body is sent
or while the client waits for "100 Continue". Each call therefore has a deadline that grows with its
bytes. A success without the fields that every S3 server returns is not believed: a load balancer
or a portal may answer 200 with an empty body.

Credentials and endpoint come from the options, or else from the places where botocore looks:
AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID and so on, the shared files, the machine's role.

s3fs is used by its public ``call_s3`` instead of ``pipe_file``, which turns large creates into
multipart uploads and loses the server's clock. obstore 0.12 is faster, but its answers have no
date, so each write would need a second request for its time; it reports a server's status and code
only as text, and takes a conflict of two creates for "exists" (tests/persist/store/test_s3.py).
"""

from __future__ import annotations

import io
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from random import Random
from typing import TYPE_CHECKING, Any, TypedDict

import msgspec
import pyarrow as pa
from fsspec.asyn import sync
from s3fs import S3FileSystem

from persist.backoff import Backoff
from persist.store.contract import (
    AlreadyExists,
    ObjectInfo,
    ObjectNotFound,
    PutInfo,
    StoreUnavailable,
    StoreUnsuitable,
    checked_path,
    checked_prefix,
)
from persist.store.generic import arrow_file
from persist.store.s3_errors import S3Answer, answer_of, to_error

if TYPE_CHECKING:
    from typing_extensions import Buffer

ATTEMPT = "ingester-attempt"
# A conflict (409) lasts as long as the other request; five attempts outlast several of them.
CONFLICT_ATTEMPTS = 5
# A deadline allows this long for every byte: the slowest connection that is still useful.
SLOWEST_BYTES_PER_S = 512 * 1024
# One of these fields is in every success of a server.
PROOFS = {
    "put_object": ("ETag",),
    "head_object": ("ETag",),
    "get_object": ("ETag",),
    "list_objects_v2": ("IsTruncated", "KeyCount", "Name"),
}


class NotAnswered(Exception):
    """A success without the fields of an S3 answer: the store may have done nothing."""


class S3Options(TypedDict, total=False):
    """Storage options for ``s3://``; all are optional."""

    endpoint_url: str
    key: str
    secret: str
    token: str
    region: str
    anon: bool  # send no credentials at all
    profile: str  # of the shared AWS files
    connect_timeout_s: float  # default 5
    read_timeout_s: float  # default 30
    s3_additional_kwargs: dict[str, Any]  # for every call that accepts them, such as encryption
    client_kwargs: dict[str, Any]  # for botocore's client
    config_kwargs: dict[str, Any]  # for botocore's Config


class S3Client:
    """Calls with one set of credentials at one endpoint. Threads may share it; forks may not."""

    def __init__(self, options: S3Options) -> None:
        """Check the options; the first call connects.

        Raises:
            ValueError: an unknown option, a value of another type, or an endpoint that carries
                credentials.
        """
        unknown = sorted(set(options) - set(S3Options.__annotations__))
        if unknown:
            known = ", ".join(sorted(S3Options.__annotations__))
            raise ValueError(f"unknown store option {unknown[0]!r} for s3://; known: {known}")
        try:
            # Texts, as the environment has them, become numbers and booleans.
            given = {name: value for name, value in options.items() if value is not None}
            options = msgspec.convert(given, S3Options, strict=False)
        except msgspec.ValidationError as exc:
            raise ValueError(f"store options for s3://: {exc}") from None
        if "@" in (options.get("endpoint_url") or ""):
            raise ValueError("endpoint_url must not carry credentials: use the options key, secret")
        connect_s = options.get("connect_timeout_s", 5.0)
        self._answer_s = connect_s + options.get("read_timeout_s", 30.0)
        self._fs = _file_system(options)
        self._fs.retries = 1  # one attempt

    def call(self, method: str, sends_bytes: int = 0, **arguments: Any) -> dict[str, Any]:
        """The parsed answer to one request, without its body.

        Raises:
            Exception: from s3fs, botocore or aiohttp; ``s3_errors.answer_of`` interprets it.
        """
        answer = self._fs.call_s3(method, timeout=self._deadline_s(sends_bytes), **arguments)
        return _proven(method, answer)

    def read(self, **arguments: Any) -> bytes:
        """The body of a ``get_object``; raises what ``call`` raises."""
        answer = self._fs.call_s3("get_object", timeout=self._answer_s, **arguments)
        deadline_s = self._deadline_s(int(answer.get("ContentLength") or 0))
        return bytes(sync(self._fs.loop, _body_of, answer, timeout=deadline_s))

    def _deadline_s(self, moved_bytes: int) -> float:
        return self._answer_s + moved_bytes / SLOWEST_BYTES_PER_S


async def _body_of(answer: Mapping[str, Any]) -> bytes:
    # Leaving the body early closes its connection.
    async with answer["Body"] as body:
        _proven("get_object", answer)
        return bytes(await body.read())


def _proven(method: str, answer: Mapping[str, Any]) -> dict[str, Any]:
    proofs = PROOFS.get(method)
    if proofs is not None and not any(answer.get(proof) is not None for proof in proofs):
        raise NotAnswered(f"a success of {method} without {' or '.join(proofs)}: not from a store")
    return dict(answer)


def _file_system(options: S3Options) -> S3FileSystem:
    config = {
        "connect_timeout": options.get("connect_timeout_s", 5.0),
        "read_timeout": options.get("read_timeout_s", 30.0),
        "retries": {"total_max_attempts": 1},
        "max_pool_connections": 32,
        # Some servers do not support newer checksums in trailers; a signature over the body (http)
        # or TLS (https) protects it already.
        "request_checksum_calculation": "when_required",
        "response_checksum_validation": "when_required",
        **options.get("config_kwargs", {}),
    }
    client = dict(options.get("client_kwargs", {}))
    if "region" in options:
        client["region_name"] = options["region"]
    session = {"profile": options["profile"]} if "profile" in options else {}
    return S3FileSystem(
        anon=options.get("anon", False),
        endpoint_url=options.get("endpoint_url"),
        key=options.get("key"),
        secret=options.get("secret"),
        token=options.get("token"),
        client_kwargs=client,
        config_kwargs=config,
        s3_additional_kwargs=options.get("s3_additional_kwargs"),
        skip_instance_cache=True,
        use_listings_cache=False,
        **session,
    )


class S3Store:
    """Objects in an existing bucket; ``contract`` states what the calls promise."""

    listing_seeks = True
    """The server starts a listing at any name."""

    def __init__(self, bucket: str, prefix: str, client: S3Client) -> None:
        """Keep objects in ``bucket`` below ``prefix`` ("" or parts joined by '/')."""
        self._bucket = bucket
        self._root = f"{prefix}/" if prefix else ""
        self._client = client
        self.url = f"s3://{bucket}/{prefix}".rstrip("/")

    def __repr__(self) -> str:
        return f"S3Store({self.url!r})"

    def put(self, path: str, data: Buffer) -> PutInfo:
        body = _as_bytes(data)
        # A file, not bytes: aiohttp would warn of large ones.
        answer = self._call("put_object", path, sends_bytes=len(body), Body=io.BytesIO(body))
        return PutInfo(len(body), _clock(answer))

    def create(self, path: str, data: Buffer) -> PutInfo:
        key, body, attempt = self._key(path), _as_bytes(data), uuid.uuid4().hex
        backoff = Backoff(0.05, 1.0, Random())
        for _ in range(CONFLICT_ATTEMPTS):
            try:
                answer = self._client.call(
                    "put_object",
                    sends_bytes=len(body),
                    Bucket=self._bucket,
                    Key=key,
                    Body=io.BytesIO(body),
                    IfNoneMatch="*",
                    Metadata={ATTEMPT: attempt},
                )
            except Exception as exc:
                kind = answer_of(exc)
                if kind is S3Answer.CONFLICT:
                    time.sleep(backoff.next_s())
                    continue
                if kind not in (S3Answer.EXISTS, S3Answer.INVALID):
                    raise to_error(kind, exc, self.url, path) from exc
                there = self._head(path)
                if there is not None and there.get("Metadata", {}).get(ATTEMPT) == attempt:
                    return PutInfo(len(body), there["LastModified"].astimezone(UTC))
                if there is None and kind is S3Answer.INVALID:
                    raise to_error(kind, exc, self.url, path) from exc
                raise AlreadyExists(path) from exc
            return PutInfo(len(body), _clock(answer))
        raise StoreUnavailable(f"{self.url}/{path}: other conditional writes kept coming between")

    def get(self, path: str) -> bytes:
        return self._read(path)

    def open(self, path: str) -> pa.NativeFile:
        there = self._head(path)
        if there is None:
            raise ObjectNotFound(path)
        etag = there["ETag"]

        def fetch(start: int, end: int) -> bytes:
            return self._read(path, Range=f"bytes={start}-{end - 1}", IfMatch=etag)

        return arrow_file(int(there["ContentLength"]), fetch)

    def exists(self, path: str) -> ObjectInfo | None:
        there = self._head(path)
        if there is None:
            return None
        return ObjectInfo(path, there["ContentLength"], there["LastModified"].astimezone(UTC))

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        where: dict[str, Any] = {"Prefix": self._root + checked_prefix(prefix)}
        if start_after:
            where["StartAfter"] = self._root + start_after
        last = start_after
        while True:
            page = self._call("list_objects_v2", None, **where)
            for found in page.get("Contents", []):
                path = found["Key"][len(self._root) :]
                if path.endswith("/") or path <= start_after:  # a "folder", as consoles make them
                    continue
                if path <= last:
                    raise StoreUnsuitable(f"{self.url}: lists {path!r} after {last!r}")
                last = path
                yield ObjectInfo(path, found["Size"], found["LastModified"].astimezone(UTC))
            if not page.get("IsTruncated"):
                return
            where["ContinuationToken"] = page["NextContinuationToken"]

    def folders(self, prefix: str) -> Iterator[str]:
        """The names of the folders directly below ``prefix``; a request for a thousand."""
        below = self._root + checked_prefix(prefix)
        where: dict[str, Any] = {"Prefix": below, "Delimiter": "/"}
        while True:
            page = self._call("list_objects_v2", None, **where)
            for found in page.get("CommonPrefixes", []):
                yield found["Prefix"][len(below) : -1]
            if not page.get("IsTruncated"):
                return
            where["ContinuationToken"] = page["NextContinuationToken"]

    def delete(self, path: str) -> None:
        with suppress(ObjectNotFound):  # S3 answers 204 either way; some servers do not
            self._call("delete_object", path)

    def now(self) -> datetime:
        """The time by the server's clock, in whole seconds."""
        return _clock(self._call("head_bucket", None))

    def _head(self, path: str) -> dict[str, Any] | None:
        try:
            return self._call("head_object", path)
        except ObjectNotFound:
            return None

    def _call(self, method: str, path: str | None, **arguments: Any) -> dict[str, Any]:
        if path is not None:
            arguments["Key"] = self._key(path)
        try:
            return self._client.call(method, Bucket=self._bucket, **arguments)
        except Exception as exc:
            raise to_error(answer_of(exc), exc, self.url, path) from exc

    def _read(self, path: str, **how: str) -> bytes:
        key = self._key(path)
        try:
            return self._client.read(Bucket=self._bucket, Key=key, **how)
        except Exception as exc:
            raise to_error(answer_of(exc), exc, self.url, path) from exc

    def _key(self, path: str) -> str:
        return self._root + checked_path(path)


def _as_bytes(data: Buffer) -> bytes:
    return data if isinstance(data, bytes) else bytes(memoryview(data))


def _clock(answer: dict[str, Any]) -> datetime:
    date = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
    if date is None:
        raise StoreUnsuitable("the server's answers carry no Date: its clock cannot be known")
    return parsedate_to_datetime(date).astimezone(UTC)
