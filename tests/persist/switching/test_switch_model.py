"""Swaps, rollbacks and writes in any order, interrupted at any change, against a model.

A file's content is the names of its rows, padded to the size of the sample files, so that rows
can be told apart even after a compaction of their files.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from random import Random
from typing import Any

import pytest

from persist.manifest import (
    Manifest,
    Proposal,
    Remove,
    SwitchRefused,
    VersionSealed,
    claim_version,
    commit,
    list_versions,
)
from persist.switching import (
    VersionRetention,
    clean_up_versions,
    finish_switch,
    forbid_switch,
    roll_back,
    switch_version,
)
from tests.drivers.memory_store import MemoryStore
from tests.drivers.pushing import Killed, KillingStore, PausingStore
from tests.persist.manifest.samples import DEFINITION, ME, OTHER, add, applied

TABLE = ("ns", "flights")
STEPS = 40


class World:
    """A table, and its expected rows."""

    def __init__(self, random: Random) -> None:
        self.store = MemoryStore()
        self.random = random
        self.rows: dict[int, list[str]] = {1: []}
        self.came: dict[int, list[str]] = {1: []}
        """The rows that were streamed into a version since it first became current."""
        self.log: dict[int, list[tuple[int, str]]] = {1: []}
        """The same rows with their manifest version, as ``since`` counts."""
        self.began = {1: 0}
        self.stack = [1]
        self.sequence = 0
        commit(self.manifest(1), None, Proposal(DEFINITION), ME)

    @property
    def current(self) -> int:
        return self.stack[-1]

    def manifest(self, version: int) -> Manifest:
        return Manifest(self.store, *TABLE, version)

    def write(self) -> None:
        """Flush into the current version."""
        sequence = self.sequence + 1
        row = f"row-{sequence}"
        path = self._file(self.current, [row])
        actions = (add(path, sequence), applied(sequence))
        state = commit(self.manifest(self.current), None, Proposal(actions), ME)
        self.sequence = sequence
        self.rows[self.current].append(row)
        self.came[self.current].append(row)
        self.log[self.current].append((state.version, row))

    def compact(self) -> None:
        """Compact some files of the current version into one."""
        manifest = self.manifest(self.current)
        files = sorted(manifest.load().files)
        some = self.random.sample(files, min(len(files), 3))
        if some:
            path = self._file(self.current, self._found(manifest, some), "one")
            removes = [Remove(path, "compaction") for path in some]
            commit(manifest, None, Proposal([*removes, add(path, 0, kind="rewrite")]), ME)

    def swap(self) -> None:
        """Make a push and swap it in, with retries by other processes."""
        push_id, old = f"push-{self.sequence}-{len(self.rows)}", self.current
        version = claim_version(self.store, *TABLE, push_id)
        assert version not in self.rows, "a number of its own"
        commit(self.manifest(version), None, Proposal(DEFINITION), OTHER)
        path = self._file(version, [f"pushed-{version}"])
        pushed = add(path, 0, kind="push", writer=OTHER)
        commit(self.manifest(version), None, Proposal([pushed]), OTHER)
        since: int | None = None
        if self.random.random() < 0.7:
            since = self.random.randint(self.began[old], self.manifest(old).head())
        for _ in range(self.random.randint(0, 2)):
            self.write()
        if self.random.random() < 0.2:
            assert not forbid_switch(self.store, *TABLE, version)
            self.rows[version] = []
            return
        self._until_done(
            lambda store: switch_version(
                store, *TABLE, version, push_id=push_id, since=since, previous=old
            )
        )
        along = [row for at, row in self.log[old] if since is not None and at > since]
        self.rows[version] = [f"pushed-{version}", *along]
        self.came[version], self.log[version] = [], []
        self.began[version] = self.manifest(version).load().imports[old].into
        self.stack.append(version)

    def back(self) -> None:
        """Roll back; refused if no version was current before."""
        left = self.current
        if len(self.stack) == 1:
            with pytest.raises(SwitchRefused, match="no version was current before"):
                roll_back(self.store, *TABLE)
            return
        self._until_done(lambda store: roll_back(store, *TABLE, left))
        self.stack.pop()
        state = self.manifest(self.current).load()
        self.rows[self.current] += self.came[left]
        self.came[self.current] += self.came[left]
        self.log[self.current] += [(state.imports[left].into, row) for row in self.came[left]]
        assert forbid_switch(self.store, *TABLE, left) is False

    def clean(self) -> None:
        """Garbage collection of versions that no rollback of this model needs: none."""
        done = clean_up_versions(self.store, *TABLE, VersionRetention(keep=1000))
        assert not done.marked and not done.deleted

    def check(self) -> None:
        """The current version has exactly the expected rows."""
        manifest = Manifest(self.store, *TABLE)
        assert manifest.table_version == self.current
        state = manifest.load()
        assert state.sealed is None and state.table_version == self.current
        assert Counter(self._found(manifest, state.files)) == Counter(self.rows[self.current])
        if self.sequence:
            assert state.applied_to("me", 1, 1, ("2026-11-21",)) == self.sequence
        counts = [each.version for each in list_versions(self.store, *TABLE) if each.current]
        assert counts == [self.current]

    def _file(self, version: int, rows: list[str], name: str = "") -> str:
        path = f"data/{name or rows[0]}-{self.random.getrandbits(64):x}.parquet"
        self.store.put(
            self.manifest(version).object_path(path), " ".join(rows).encode().ljust(1000)
        )
        return path

    def _found(self, manifest: Manifest, files: Any) -> list[str]:
        data = (self.store.get(manifest.object_path(path)).decode() for path in files)
        return [row for text in data for row in text.split()]

    def _until_done(self, move: Any) -> None:
        """Run a move in processes that are killed at some change, with concurrent or later ones."""
        while True:
            store: Any = PausingStore(self.store, self.random.randint(1, 150), self._write_beside)
            killing: Any = KillingStore(
                store, self.random.randint(1, 12), done=self.random.random() < 0.5
            )
            try:
                move(killing)
            except Killed:
                if self.random.random() < 0.5:
                    finish_switch(self.store, *TABLE)
            except VersionSealed:
                raise AssertionError("only this move is under way") from None
            else:
                return

    def _write_beside(self) -> None:
        """Flush during a move, before its seal."""
        with suppress(VersionSealed):
            self.write()


@pytest.mark.parametrize("seed", range(30))
def test_the_current_version_equals_the_model(seed: int) -> None:
    random = Random(seed)
    world = World(random)
    moves = (world.write, world.write, world.compact, world.swap, world.back, world.clean)
    for _ in range(STEPS):
        random.choice(moves)()
        world.check()
