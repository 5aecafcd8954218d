"""One S3 client through s3fs, for many threads, every call of it bounded in time.

Nothing here retries: whoever calls a store decides when to try again, and must hear at once that
it is away. (aiohttp, below, sends a PUT once more when its connection closes without an answer, and
cannot be told not to: ``S3Store.create`` is ready for that.)
Credentials and endpoint come from the options, else from where botocore looks: AWS_ENDPOINT_URL,
AWS_ACCESS_KEY_ID and its kin, the shared files, the machine's role.

Read time-outs alone do not bound a call: they do not run while a body is sent, nor while the
client waits for "100 Continue". So each call also has a deadline that grows with its bytes.

A success is only believed where it has what every S3 server says of one: something between us and
the store (a balancer, a portal) may answer 200 with nothing in it, for an object it has dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, TypedDict

from fsspec.asyn import sync
from s3fs import S3FileSystem

# The slowest line that is still of use: a deadline allows every byte this much time.
SLOWEST_BYTES_PER_S = 512 * 1024

# What a success has: of an object its ETag, of a listing one of these.
PROOFS = {
    "put_object": ("ETag",),
    "head_object": ("ETag",),
    "get_object": ("ETag",),
    "list_objects_v2": ("IsTruncated", "KeyCount", "Name"),
}


class NotAnswered(Exception):
    """A success without what S3 says of one: whoever gave it, the store may have done nothing."""


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
    s3_additional_kwargs: dict[str, Any]  # for every call that knows them, such as encryption
    client_kwargs: dict[str, Any]  # for botocore's client
    config_kwargs: dict[str, Any]  # for botocore's Config


class S3Client:
    """Calls of one set of credentials at one endpoint. Threads may share it; forks may not."""

    def __init__(self, options: S3Options) -> None:
        """Connect with the first call, not here.

        Raises:
            ValueError: an option that is not known, or an endpoint that carries credentials.
        """
        unknown = sorted(set(options) - set(S3Options.__annotations__))
        if unknown:
            known = ", ".join(sorted(S3Options.__annotations__))
            raise ValueError(f"unknown storage option {unknown[0]!r} for s3://; known: {known}")
        if "@" in (options.get("endpoint_url") or ""):
            raise ValueError("endpoint_url must not carry credentials: use the options key, secret")
        connect_s = options.get("connect_timeout_s", 5.0)
        self._answer_s = connect_s + options.get("read_timeout_s", 30.0)
        self._fs = _file_system(options)
        # s3fs's own: one attempt, no second one.
        self._fs.retries = 1

    def call(self, method: str, sends_bytes: int = 0, **arguments: Any) -> dict[str, Any]:
        """The parsed answer of one request, without its body.

        Raises:
            Exception: whatever s3fs, botocore or aiohttp raise; ``s3_errors.verdict_of`` sorts it.
        """
        answer = self._fs.call_s3(method, timeout=self._deadline_s(sends_bytes), **arguments)
        return _proven(method, answer)

    def read(self, **arguments: Any) -> bytes:
        """The body of a ``get_object``; raises what ``call`` raises."""
        return bytes(sync(self._fs.loop, self._read, arguments))

    async def _read(self, arguments: dict[str, Any]) -> bytes:
        asked = self._fs._call_s3("get_object", **arguments)
        answer = _proven("get_object", await asyncio.wait_for(asked, self._answer_s))
        # Left early, the body closes its connection: what is still under way is not waited for.
        async with answer["Body"] as body:
            expected_bytes = int(answer["ContentLength"])
            data = await asyncio.wait_for(body.read(), self._deadline_s(expected_bytes))
        return bytes(data)

    def _deadline_s(self, moved_bytes: int) -> float:
        return self._answer_s + moved_bytes / SLOWEST_BYTES_PER_S


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
        # Newer checksums in trailers are more than some servers understand; a signature over
        # the body (http) or TLS (https) protects it already.
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
