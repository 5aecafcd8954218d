"""Steps of large tables without data files, for tests of metadata alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from msgspec.structs import replace as changed

from persist.manifest import Action, Add, Remove, apply
from persist.publish.steps import OpenFile, Place, Step
from tests.persist.publish.tables import SCHEMA, BuiltTable, sample


class MadeUpTable:
    """A table whose files exist only by name; each call makes the next step."""

    def __init__(self, store: Any, spec: Sequence[str] = ("identity(i8)",), **options: Any) -> None:
        built = BuiltTable(store, SCHEMA, spec, **options)
        [self._model] = built.write(sample(0, 1))
        self.last = built.steps()[0]
        self._made = 0

    def files(self, count: int) -> list[Add]:
        """New files in partitions that take turns."""
        first, self._made = self._made, self._made + count
        return [
            changed(
                self._model,
                path=f"data/i8_key={number % 7}/{number:032x}.parquet",
                rows=1 + number % 5,
                values=tuple(number % 7 for _ in self._model.values),
                spec_id=self.last.definition.spec_id,
            )
            for number in range(first, self._made)
        ]

    def step(self, added: Sequence[Add] = (), removed: Sequence[str] = (), ms: int = 100) -> Step:
        """The next version of the table, ``ms`` after the one before."""
        before = self.last.state
        gone = [before.files[path] for path in removed]
        actions: list[Action] = [*(Remove(path=path, reason="x") for path in removed), *added]
        number = self.last.place.number + 1
        state = replace(apply(before, actions), version=number, uid=f"uid{number}")
        self.last = replace(
            self.last,
            place=Place(number, 1, number, state.uid),
            at_ms=self.last.at_ms + ms,
            added=tuple(OpenFile(f"v1/{add.path}", add) for add in added),
            removed=tuple(OpenFile(f"v1/{add.path}", add) for add in gone),
            complete=False,
            state=state,
        )
        return self.last

    def complete(self) -> Step:
        """The last version as a step of a publisher that knows nothing before it."""
        files = tuple(self.last.files())
        return replace(self.last, added=files, removed=(), complete=True)
