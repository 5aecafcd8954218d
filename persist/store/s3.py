"""Objects in a bucket of any S3 server that honours ``If-None-Match: *``.

Every write is one single PUT, never a multipart upload: some servers check the condition of a
multipart upload when it begins, and overwrite when it ends. (S3 takes up to 5 GiB in one PUT.)

A create carries a number of its own in the object's metadata. If the server says "exists", the
object there is looked at once: a PUT that was repeated under way (aiohttp and proxies do that when
a connection closes without an answer) meets its own first copy, and that is a success.
"""

from __future__ import annotations

import io
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from persist.backoff import Backoff
from persist.store.contract import (
    AlreadyExists,
    NotFound,
    ObjectInfo,
    PutInfo,
    StoreUnavailable,
    StoreUnsuitable,
    checked_path,
    checked_prefix,
)
from persist.store.generic import arrow_file
from persist.store.s3_client import S3Client
from persist.store.s3_errors import Verdict, to_error, verdict_of

if TYPE_CHECKING:
    from typing_extensions import Buffer

ATTEMPT = "ingester-attempt"
# A conflict (409) lasts as long as the other request; five attempts outlast several of them.
CONFLICT_ATTEMPTS = 5


class S3Store:
    """Objects in a bucket, which has to exist; calls promise what ``contract`` says."""

    listing_seeks = True
    """The server begins where it is told."""

    def __init__(self, bucket: str, prefix: str, client: S3Client) -> None:
        """Keep objects in ``bucket`` below ``prefix`` ("" or parts joined by '/')."""
        self._bucket = bucket
        self._root = f"{prefix}/" if prefix else ""
        self._client = client
        self.url = f"s3://{bucket}/{prefix}".rstrip("/")

    def __repr__(self) -> str:
        return f"S3Store({self.url!r})"

    def put(self, path: str, data: Buffer) -> PutInfo:
        key, body = self._key(path), _as_bytes(data)
        answer = self._call(
            "put_object", path, sends_bytes=len(body), Key=key, Body=io.BytesIO(body)
        )
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
                    # A file, not bytes: aiohttp would warn of large ones.
                    Body=io.BytesIO(body),
                    IfNoneMatch="*",
                    Metadata={ATTEMPT: attempt},
                )
            except Exception as exc:
                verdict = verdict_of(exc)
                if verdict is Verdict.CONFLICT:
                    time.sleep(backoff.next_s())
                    continue
                if verdict not in (Verdict.EXISTS, Verdict.INVALID):
                    raise to_error(verdict, exc, self.url, path) from exc
                there = self._head(path)
                if there is not None and there.get("Metadata", {}).get(ATTEMPT) == attempt:
                    return PutInfo(len(body), there["LastModified"].astimezone(UTC))
                if there is None and verdict is Verdict.INVALID:
                    raise to_error(verdict, exc, self.url, path) from exc
                raise AlreadyExists(path) from exc
            return PutInfo(len(body), _clock(answer))
        raise StoreUnavailable(f"{self.url}/{path}: other conditional writes kept coming between")

    def get(self, path: str) -> bytes:
        return self._read(path, {})

    def open(self, path: str) -> pa.NativeFile:
        there = self._head(path)
        if there is None:
            raise NotFound(path)
        etag = there["ETag"]

        def fetch(start: int, end: int) -> bytes:
            return self._read(path, {"Range": f"bytes={start}-{end - 1}", "IfMatch": etag})

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

    def delete(self, path: str) -> None:
        with suppress(NotFound):  # S3 answers 204 either way, some servers do not
            self._call("delete_object", path, Key=self._key(path))

    def now(self) -> datetime:
        """The time by the server's clock, in whole seconds."""
        return _clock(self._call("head_bucket", None))

    def _head(self, path: str) -> dict[str, Any] | None:
        try:
            return self._call("head_object", path, Key=self._key(path))
        except NotFound:
            return None

    def _call(self, method: str, path: str | None, **arguments: Any) -> dict[str, Any]:
        try:
            return self._client.call(method, Bucket=self._bucket, **arguments)
        except Exception as exc:
            raise to_error(verdict_of(exc), exc, self.url, path) from exc

    def _read(self, path: str, how: dict[str, str]) -> bytes:
        key = self._key(path)
        try:
            return self._client.read(Bucket=self._bucket, Key=key, **how)
        except Exception as exc:
            raise to_error(verdict_of(exc), exc, self.url, path) from exc

    def _key(self, path: str) -> str:
        return self._root + checked_path(path)


def _as_bytes(data: Buffer) -> bytes:
    return data if isinstance(data, bytes) else bytes(memoryview(data))


def _clock(answer: dict[str, Any]) -> datetime:
    date = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
    if date is None:
        raise StoreUnsuitable("the server's answers carry no Date: its clock cannot be known")
    return parsedate_to_datetime(date).astimezone(UTC)
