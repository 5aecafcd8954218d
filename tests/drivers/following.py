"""Calls of scope ``live``, spoken with nothing but pyarrow.flight and json: no code of ours.

    follower = Follower(client, table, version=7)
    answer = follower.ask(wait_s=5)        # from where the last answer ended

A `Follower` keeps what its answers have brought; `Answer.groups` are the batches by their metadata.
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
    """Batches of one buffer's operations."""

    metadata: Json
    rows: pa.Table

    @property
    def partition(self) -> str:
        """The folder's name."""
        name = self.metadata["partition"]
        assert isinstance(name, str)
        return name

    @property
    def span(self) -> tuple[int, int]:
        """The sequences of the first and of the last operation."""
        return self.metadata["first_seq"], self.metadata["last_seq"]


class Answer(NamedTuple):
    """One answer, read to its end."""

    metadata: dict[str, str]
    groups: list[Group]
    schema: pa.Schema

    @property
    def position(self) -> Json:
        """Where the next call goes on."""
        found: Json = json.loads(self.metadata["position"])
        return found

    @property
    def version(self) -> int:
        """The manifest version that goes with the position."""
        return int(self.metadata["manifest_version"])

    @property
    def more(self) -> bool:
        """Whether there is more at once."""
        return {"true": True, "false": False}[self.metadata["more"]]

    @property
    def rows(self) -> pa.Table:
        """All rows, in the order in which they came."""
        tables = [group.rows for group in self.groups]
        return pa.concat_tables(tables) if tables else self.schema.empty_table()


def live(client: fl.FlightClient, table: Table, **fields: object) -> Answer:
    """One call, read to its end."""
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
    """Somebody who follows one table, and passes on what the answers say."""

    client: fl.FlightClient
    table: Table
    version: int | None = None
    position: Json | None = None
    fields: dict[str, Any] = field(default_factory=dict)
    answers: list[Answer] = field(default_factory=list)

    def ask(self, **fields: object) -> Answer:
        """One more call."""
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
        """Ask until there is no more at once."""
        found = [self.ask(wait_s=0)]
        while found[-1].more:
            found.append(self.ask(wait_s=0))
        return found

    def column(self, name: str = "i") -> list[Any]:
        """One column of all answers, in the order in which it came."""
        return [value for answer in self.answers for value in answer.rows[name].to_pylist()]


class Parked:
    """A call that waits, in a thread of its own."""

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
        """Whether it is still under way."""
        return self._thread.is_alive()

    def result(self, timeout_s: float = 60.0) -> Answer:
        """The answer, once it is there; raises what the call raised."""
        self._thread.join(timeout_s)
        assert not self.waits, f"no answer in {timeout_s:g} s"
        if self.error is not None:
            raise self.error
        assert self.answer is not None
        return self.answer
