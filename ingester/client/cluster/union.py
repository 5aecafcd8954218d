"""A query of several daemons: the files of one version, and what each daemon has beyond it.

    describe at all ──▶ version V, keyed or not
      without a primary key   V's files, from one daemon, and of each daemon the tail of V
      with a primary key      the owner's own answer: it alone has rows that are in no file;
                              V's files where nobody owns it
      of a version            files alone, from whichever daemon answers

Each daemon's tail has exactly what V's files lack of its rows, as one snapshot of it that is taken
after the call: so everything acknowledged before it is in the answer, each row once. A daemon that
is away may have rows that nobody else knows: that is an error, or they are said to be missing.

Rows of an origin that went from one daemon to another in the middle of the asking could come from
both, or from neither. Whoever took it says since which version it has it, and whoever had it since
which version it left rows out (``taken_version``); where that is after V everybody is asked again.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from ..calls import Missing
from ..connection import Connection
from ..errors import Unavailable, Unreachable
from ..query_stream import QueryStream
from ..wire import QueryRequest
from .asking import Answers, Asking
from .stores import different
from .union_stream import UnionStream

ATTEMPTS = 6


class Newest(NamedTuple):
    """The table at the daemon that knows its newest version."""

    version: int
    table_version: int
    keyed: bool
    owner: str | None
    """The id of the daemon that takes a keyed table's writes; None where nobody does."""
    endpoint: str | None


class Union:
    """Queries of the daemons of one client. Any thread."""

    def __init__(self, asking: Asking, lacking: str) -> None:
        """``lacking`` says in an error what would be missing without a daemon."""
        self._asking = asking
        self._lacking = lacking

    def stream(
        self, request: QueryRequest, missing: Missing, within_s: float | None
    ) -> QueryStream:
        """The answer, batch by batch; each daemon's part within ``within_s``."""
        body = msgspec.json.decode(request.ticket())
        scope = body.get("scope", "all")
        if scope == "version":
            return self._files(request, (), within_s)
        stale = Unavailable("origins go from daemon to daemon all the time: ask again")
        for _ in range(ATTEMPTS):
            newest, gone = self._newest(request, missing)
            if request.table_version not in (None, newest.table_version):
                return self._files(request, gone, within_s)
            if newest.keyed and scope == "all":
                return self._of_owner(request, newest, missing, gone, within_s)
            try:
                found = self._with_tails(request, newest, missing, gone, within_s)
            except Unavailable as exc:
                if exc.code != "stale":
                    raise
                stale = exc
                continue
            if found is not None:
                return found
        raise stale

    def _newest(self, request: QueryRequest, missing: Missing) -> tuple[Newest, Sequence[str]]:
        body = {"namespace": request.namespace, "table": request.table}

        def described(one: Connection) -> dict[str, Any]:
            return one.act("describe_table", body, once=True)[0]

        answers = self._asking.all_of(described, missing, self._lacking)
        found = max(answers.of.values(), key=_place)
        owner = found.get("owner") or {}
        table_version, version = _place(found)
        keyed = bool(found.get("primary_key"))
        told = owner.get("ingester_id"), owner.get("endpoint")
        newest = Newest(version, table_version, keyed, *told)
        return newest, answers.missing

    def _files(
        self, request: QueryRequest, gone: Sequence[str], within_s: float | None
    ) -> QueryStream:
        """The answer of whichever daemon gives it: it is the same everywhere."""
        return self._asking.any_of(
            (request.namespace, request.table),
            lambda one: one.stream(request.ticket(), within_s),
            besides=gone,
        )

    def _files_of(
        self, newest: Newest, request: QueryRequest, gone: Sequence[str], within_s: float | None
    ) -> QueryStream:
        """What is in files of the newest version that a daemon knows, from whoever answers."""
        fields = {"version": newest.version, "table_version": newest.table_version}
        files = msgspec.structs.replace(request, scope="version", **fields)
        return UnionStream([self._files(files, gone, within_s)], request, gone)

    def _of_owner(
        self,
        request: QueryRequest,
        newest: Newest,
        missing: Missing,
        gone: Sequence[str],
        within_s: float | None,
    ) -> QueryStream:
        """The answer of a keyed table's owner, which is told by its id.

        Where none owns it, all is in the files of the newest version. What anybody answers by
        itself is no better: it may not have seen that version yet.

        Raises:
            Unreachable: the owner is none of the daemons that the client knows.
        """
        if newest.owner is None:
            return self._files_of(newest, request, gone, within_s)
        opened: list[QueryStream] = []
        ticket = request.ticket()
        try:
            answers = self._asking.all_of(
                lambda one: _noted(opened, one.stream(ticket, within_s)),
                missing,
                self._lacking,
                gone,
            )
            _check_one_store(answers.of)
            owners = [s for s in opened if s.snapshot.ingester_id == newest.owner]
            if not owners and not answers.missing:
                raise Unreachable(
                    f"daemon {newest.owner!r} at {newest.endpoint} takes the writes of"
                    f" {request.namespace}/{request.table}, and is none of those that this client"
                    " was given: name it, too"
                )
            if not owners:  # it is away
                _close(opened)
                return self._files_of(newest, request, answers.missing, within_s)
            chosen = owners[0]
            _close([stream for stream in opened if stream is not chosen])
            return UnionStream([chosen], request, answers.missing)
        except BaseException:
            _close(opened)
            raise

    def _with_tails(
        self,
        request: QueryRequest,
        newest: Newest,
        missing: Missing,
        gone: Sequence[str],
        within_s: float | None,
    ) -> QueryStream | None:
        """The tails of all daemons, and the version's files; None where an origin has moved.

        Who was away a moment ago is not asked: an answer has no time limit by default.
        """
        replace = msgspec.structs.replace
        version = newest.version if request.version is None else request.version
        at = replace(request, version=version, table_version=newest.table_version)
        tail = replace(at, scope="buffered").ticket()
        opened: list[QueryStream] = []
        try:
            tails: Answers[QueryStream] = self._asking.all_of(
                lambda one: _noted(opened, one.stream(tail, within_s)),
                missing,
                self._lacking,
                gone,
            )
            _check_one_store(tails.of)
            streams = _of_each_daemon([*tails.of.values()])
            taken = [stream.snapshot.taken_version or 0 for stream in streams]
            if max(taken, default=0) > version:
                _close(opened)
                return None
            if request.scope == "all":
                streams.append(self._files(replace(at, scope="version"), tails.missing, within_s))
            return UnionStream(streams, request, tails.missing)
        except BaseException:
            _close(opened)
            raise


def _check_one_store(answers: Mapping[str, QueryStream]) -> None:
    """Raise InvalidRequest where two daemons, by their endpoints, answer from different stores."""
    said = {endpoint: stream.snapshot.store for endpoint, stream in answers.items()}
    error = different({endpoint: store for endpoint, store in said.items() if store})
    if error is not None:
        raise error


def _of_each_daemon(streams: Sequence[QueryStream]) -> list[QueryStream]:
    """One stream per daemon: some have two endpoints, as by IPv4 and IPv6."""
    found: dict[tuple[str | None, str | None], QueryStream] = {}
    for stream in streams:
        daemon = (stream.snapshot.ingester_id, stream.snapshot.incarnation)
        if found.setdefault(daemon, stream) is not stream:
            stream.close()
    return list(found.values())


def _place(table: dict[str, Any]) -> tuple[int, int]:
    return table.get("table_version") or 1, table.get("manifest_version") or 0


def _noted(opened: list[QueryStream], stream: QueryStream) -> QueryStream:
    opened.append(stream)
    return stream


def _close(streams: Sequence[QueryStream]) -> None:
    for stream in streams:
        stream.close()
