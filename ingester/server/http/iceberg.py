"""A read-only Iceberg REST catalogue of the store's published tables, at ``/iceberg``.

| route below /iceberg                            | answer                                         |
|-------------------------------------------------|------------------------------------------------|
| GET /v1/config                                  | defaults, and the endpoints that exist         |
| GET /v1/namespaces                              | those where the caller has the right ``read``  |
| GET, HEAD /v1/namespaces/N                      | no properties                                  |
| GET /v1/namespaces/N/tables                     | the tables published as Iceberg                |
| GET, HEAD /v1/namespaces/N/tables/T             | the newest metadata, with an ``ETag``          |
| POST /v1/namespaces/N/tables/T/metrics          | 204; the report is dropped                     |

An error is ``{"error": {"message": …, "type": …, "code": …}}``, also one of the entrance. Writes
are refused with 405. A table in an unknown namespace is ``NoSuchTableException``, because Spark
looks for the table ``t`` in a namespace ``db.t`` when it reads ``db.t.snapshots``. Namespaces have
one level. Listings have one page, and ``pageToken``, ``pageSize`` and ``snapshots`` are ignored, as
the specification permits.

No credentials are handed out: clients read metadata and data files with their own. For a store on
S3, ``config`` has the endpoint and the region of the daemon's settings as defaults, which a
client's own settings override.

The store is read in threads of their own, at most ``THREADS`` at a time; a listing is kept for
``KEEP_FACTOR`` times as long as it took, at least ``KEEP_S``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import msgspec
import trio
from starlette.requests import Request
from starlette.responses import Response

from ingester.server.http.entrance import Handler, TurnedAway
from persist.publish.listing import (
    has_namespace,
    is_published,
    namespaces,
    newest,
    published_tables,
)
from persist.publish.steps import ForeignCommit
from persist.store import ObjectStore, StoreError, StoreUnavailable

T = TypeVar("T")

ROOT = "/iceberg"
THREADS = 4
KEEP_S, KEEP_FACTOR = 5.0, 10.0
TIMEOUT_S = 60.0
"""A request to the store without an answer for this long is given up. Of a store that hangs,
``THREADS`` threads are occupied at most."""
RETRY_S = 5
_NAMESPACE = "/v1/namespaces/{namespace}"
_TABLE = f"{_NAMESPACE}/tables/{{table}}"
ENDPOINTS = tuple(
    f"{method} {path.replace('/v1/', '/v1/{prefix}/')}"
    for method, path in (
        ("GET", "/v1/namespaces"),
        ("GET", _NAMESPACE),
        ("HEAD", _NAMESPACE),
        ("GET", f"{_NAMESPACE}/tables"),
        ("GET", _TABLE),
        ("HEAD", _TABLE),
        ("POST", f"{_TABLE}/metrics"),
    )
)
_TYPES = {
    400: "BadRequestException",
    401: "NotAuthorizedException",
    403: "ForbiddenException",
    404: "NotFoundException",
    405: "UnsupportedOperationException",
    429: "TooManyRequestsException",
    503: "ServiceUnavailableException",
}
READ_ONLY = (
    "this catalogue is read-only: tables are created and written through the ingester, and"
    " published by it"
)


def error(status: int, message: str, kind: str = "") -> Response:
    """Return an error as the specification has it.

    Args:
        kind: its ``type``; by default that of the status.
    """
    kind = kind or _TYPES.get(status, "InternalServerError" if status >= 500 else _TYPES[400])
    return _json({"error": {"message": message, "type": kind, "code": status}}, status)


def refusal(request: Request, status: int) -> Response:
    """Return the error of a path or a method that the catalogue does not have."""
    if request.url.path == f"{ROOT}/v1/oauth/tokens":
        return error(
            405, "no tokens are handed out here: a client's option 'token' is one of the daemon's"
        )
    if request.method not in ("GET", "HEAD"):
        return error(405, READ_ONLY)
    return error(status, f"no such path in this catalogue; {ROOT}/v1/config names those it has")


class IcebergRoutes:
    """Answers the catalogue's routes. On the loop.

    Args:
        open_store: returns the daemon's store, or why it cannot be read now.
        store_options: the options of the store in the settings.
    """

    def __init__(
        self, open_store: Callable[[], ObjectStore | str], store_options: Mapping[str, Any]
    ) -> None:
        self._open_store, self._options = open_store, store_options
        self._threads = trio.CapacityLimiter(THREADS)
        # One listing at a time; a second caller finds the result of the first.
        self._listing = trio.Lock()
        self._kept: dict[str, tuple[float, list[str]]] = {}

    def routes(self) -> dict[str, tuple[str, Handler]]:
        """Return the method and the handler of each path; HEAD is answered where GET is."""
        return {
            f"{ROOT}/v1/config": ("GET", self._config),
            f"{ROOT}/v1/namespaces": ("GET", self._namespaces),
            ROOT + _NAMESPACE: ("GET", self._namespace),
            f"{ROOT}{_NAMESPACE}/tables": ("GET", self._tables),
            ROOT + _TABLE: ("GET", self._table),
            f"{ROOT}{_TABLE}/metrics": ("POST", self._metrics),
        }

    async def _config(self, request: Request) -> Response:
        on_s3 = self._store().url.startswith("s3://")
        defaults = s3_defaults(self._options) if on_s3 else {}
        return _json({"defaults": defaults, "overrides": {}, "endpoints": ENDPOINTS})

    async def _namespaces(self, request: Request) -> Response:
        store, sees = self._store(), request.state.sees
        if parent := request.query_params.get("parent"):
            if sees is not None and not sees(parent):
                told = f"this token does not have read in namespace {_shown(parent)}"
                raise TurnedAway(403, "", told)
            await self._require(store, parent)
            return _json({"namespaces": []})  # namespaces have one level
        found = await self._listed("", partial(namespaces, store))
        return _json({"namespaces": [[name] for name in found if sees is None or sees(name)]})

    async def _namespace(self, request: Request) -> Response:
        namespace = request.path_params["namespace"]
        await self._require(self._store(), namespace)
        if request.method == "HEAD":
            return Response(status_code=204)
        return _json({"namespace": [namespace], "properties": {}})

    async def _tables(self, request: Request) -> Response:
        store, namespace = self._store(), request.path_params["namespace"]
        await self._require(store, namespace)
        found = await self._listed(namespace, partial(published_tables, store, namespace))
        return _json({"identifiers": [{"namespace": [namespace], "name": name} for name in found]})

    async def _table(self, request: Request) -> Response:
        store, named = self._store(), request.path_params
        namespace, table = named["namespace"], named["table"]
        message = (
            f"table {_shown(namespace)}.{_shown(table)} does not exist, or is not published as"
            " Iceberg"
        )
        missing = TurnedAway(404, "NoSuchTableException", message)
        if request.method == "HEAD":
            if not await self._read(partial(is_published, store, namespace, table)):
                raise missing
            return Response(status_code=204)
        found = await self._read(partial(newest, store, namespace, table))
        if found is None:
            raise missing
        head, metadata = found
        # The uid tells it from the file of that name of a table that was created again.
        tag = f'"{head.place.uid}-{head.location.rsplit("/", 1)[1]}"'
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers={"ETag": tag})
        body = {"metadata-location": head.location, "metadata": msgspec.Raw(metadata), "config": {}}
        response = _json(body)
        response.headers["ETag"] = tag
        return response

    async def _metrics(self, request: Request) -> Response:
        with trio.move_on_after(TIMEOUT_S):
            async for _ in request.stream():
                pass
        return Response(status_code=204)

    def _store(self) -> ObjectStore:
        """Return the store. Raises :class:`TurnedAway` if it cannot be read now."""
        found = self._open_store()
        if isinstance(found, str):
            raise _away(f"the daemon cannot answer now: {found}")
        return found

    async def _require(self, store: ObjectStore, namespace: str) -> None:
        """Raise :class:`TurnedAway` for a namespace that does not exist."""
        if not await self._read(partial(has_namespace, store, namespace)):
            message = f"namespace {_shown(namespace)} does not exist in this store"
            raise TurnedAway(404, "NoSuchNamespaceException", message)

    async def _listed(self, key: str, find: Callable[[], list[str]]) -> list[str]:
        """Return a listing, which may be a kept one."""
        async with self._listing:
            until, found = self._kept.get(key, (0.0, []))
            began = trio.current_time()
            if until <= began:
                found = await self._read(find)
                now = trio.current_time()
                self._kept[key] = now + max(KEEP_S, KEEP_FACTOR * (now - began)), found
            return found

    async def _read(self, read: Callable[[], T]) -> T:
        """Return the result of a call that reads the store. Raises :class:`TurnedAway`."""
        try:
            with trio.fail_after(TIMEOUT_S):
                return await trio.to_thread.run_sync(
                    read, limiter=self._threads, abandon_on_cancel=True
                )
        except StoreUnavailable as exc:
            raise _away(f"the store is unreachable: {exc}") from exc
        except trio.TooSlowError as exc:
            raise _away(f"the store has not answered for {TIMEOUT_S:.0f} s") from exc
        except StoreError as exc:
            raise TurnedAway(500, "", f"the store cannot be read: {exc}") from exc
        except ForeignCommit as exc:
            raise TurnedAway(500, "", str(exc)) from exc


def s3_defaults(options: Mapping[str, Any]) -> dict[str, str]:
    """Return what clients need to reach a store on S3, and no more, from the store's options."""
    endpoint, region = options.get("endpoint_url"), options.get("region")
    found = {"s3.endpoint": endpoint, "s3.region": region, "client.region": region}
    if endpoint:
        style = ((options.get("config_kwargs") or {}).get("s3") or {}).get("addressing_style")
        found["s3.path-style-access"] = "false" if style == "virtual" else "true"
    return {name: str(value) for name, value in found.items() if value}


def _shown(name: str) -> str:
    """Return a name for a message; levels of a namespace are joined by U+001F in a path."""
    return name[:128].replace("\x1f", ".")


def _away(message: str) -> TurnedAway:
    return TurnedAway(503, "", message, {"Retry-After": str(RETRY_S)})


def _json(body: object, status: int = 200) -> Response:
    headers = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
    return Response(msgspec.json.encode(body), status, headers, "application/json")
