"""Calls of scope ``live`` with nothing but pyarrow.flight and json, without the client library.

    follower = Follower(client, table, version=7)
    answer = follower.ask(wait_s=5)        # resumes where the last answer ended

A `Follower` keeps the answers it received; `Answer.groups` are the batches by their metadata.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.flight as fl

from tests.drivers.wire import Json, Table, ticket


class Group(NamedTuple):
    """Batches with operations of one buffer."""

    metadata: Json
    rows: pa.Table

    @property
    def partition(self) -> str:
        """The partition's folder name."""
        name = self.metadata["partition"]
        assert isinstance(name, str)
        return name

    @property
    def span(self) -> tuple[int, int]:
        """The sequences of the first and the last operation."""
        return self.metadata["first_seq"], self.metadata["last_seq"]


class Answer(NamedTuple):
    """One complete answer."""

    metadata: dict[str, str]
    groups: list[Group]
    schema: pa.Schema

    @property
    def position(self) -> Json:
        """The position at which the next call resumes."""
        found: Json = json.loads(self.metadata["position"])
        return found

    @property
    def version(self) -> int:
        """The manifest version that belongs to the position."""
        return int(self.metadata["manifest_version"])

    @property
    def more(self) -> bool:
        """Whether more rows are available immediately."""
        return {"true": True, "false": False}[self.metadata["more"]]

    @property
    def rows(self) -> pa.Table:
        """All rows in the order of their arrival."""
        tables = [group.rows for group in self.groups]
        return pa.concat_tables(tables) if tables else self.schema.empty_table()


def live(client: fl.FlightClient, table: Table, **fields: object) -> Answer:
    """Make one call and read its complete answer."""
    reader = client.do_get(ticket(table, **{"scope": "live", **fields}))
    raw = reader.schema.metadata
    chunks = [(chunk.data, chunk.app_metadata.to_pybytes()) for chunk in reader]
    schema = reader.schema.remove_metadata()
    groups = [
        Group(json.loads(key), pa.Table.from_batches([batch for batch, _ in found]))
        for key, found in groupby(chunks, key=lambda chunk: chunk[1])
    ]
    return Answer({k.decode(): v.decode() for k, v in raw.items()}, groups, schema)


@dataclass
class Follower:
    """Follows one table and resumes each call from the previous answer."""

    client: fl.FlightClient
    table: Table
    version: int | None = None
    position: Json | None = None
    fields: dict[str, Any] = field(default_factory=dict)
    answers: list[Answer] = field(default_factory=list)

    def ask(self, **fields: object) -> Answer:
        """Make the next call."""
        given = {**self.fields, **fields}
        if self.position is not None:
            given["after"] = self.position
        if self.version is not None:
            given.setdefault("version", self.version)
        answer = live(self.client, self.table, **given)
        self.position = answer.position
        self.answers.append(answer)
        return answer

    def catch_up(self) -> list[Answer]:
        """Call until no more rows are available immediately."""
        found = [self.ask(wait_s=0)]
        while found[-1].more:
            found.append(self.ask(wait_s=0))
        return found

    def column(self, name: str = "i") -> list[Any]:
        """One column of all answers, in the order of arrival."""
        return [value for answer in self.answers for value in answer.rows[name].to_pylist()]


class Parked:
    """A blocking call in its own thread."""

    def __init__(self, url: str, table: Table, **fields: object) -> None:
        self.answer: Answer | None = None
        self.error: BaseException | None = None
        self._url, self._table, self._fields = url, table, fields
        self._thread = threading.Thread(target=self._call, daemon=True)
        self._thread.start()

    def _call(self) -> None:
        try:
            with fl.connect(self._url) as client:
                self.answer = live(client, self._table, **self._fields)
        except BaseException as exc:
            self.error = exc

    @property
    def waits(self) -> bool:
        """Whether the call is still running."""
        return self._thread.is_alive()

    def result(self, timeout_s: float = 60.0) -> Answer:
        """Wait for the answer; raise what the call raised."""
        self._thread.join(timeout_s)
        assert not self.waits, f"no answer in {timeout_s:g} s"
        if self.error is not None:
            raise self.error
        assert self.answer is not None
        return self.answer
