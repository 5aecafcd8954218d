"""Swaps, rollbacks and writes in any order, ended at any change, beside a model of the table."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from persist.manifest import Manifest, SwitchRefused, VersionSealed, claim_version, list_versions
from persist.store import open_store
from persist.switching import (
    VersionRetention,
    clean_up_versions,
    finish_switch,
    roll_back,
    switch_version,
)
from tests.drivers.pushing import Killed, KillingStore
from tests.persist.manifest.samples import DEFINITION
from tests.persist.switching.test_switch import TABLE, commit_to, paths, push, stream

STEPS = 25


class World:
    """A table, and what it has to be."""

    def __init__(self, folder: Path, random: Random) -> None:
        self.store = open_store(f"file://{folder}")
        self.random = random
        self.files: dict[int, set[str]] = {1: set()}
        self.came: dict[int, set[str]] = {1: set()}
        """The files that were streamed into a version since it was switched to last."""
        self.stack = [1]
        self.sequence = 0
        commit_to(self.store, 1, *DEFINITION)

    @property
    def current(self) -> int:
        """The version that counts."""
        return self.stack[-1]

    def write(self) -> None:
        """A flush into the version that counts."""
        self.sequence += 1
        path = f"data/{self.sequence}.parquet"
        stream(self.store, self.current, path, self.sequence)
        self.files[self.current].add(path)
        self.came[self.current].add(path)

    def swap(self) -> None:
        """A push that is made and swapped in, by whoever lives long enough."""
        push_id = f"push-{self.sequence}-{len(self.files)}"
        version = claim_version(self.store, *TABLE, push_id)
        assert version not in self.files, "a number of its own"
        push(self.store, version)
        self._until_done(lambda store: switch_version(store, *TABLE, version, push_id=push_id))
        self.files[version] = {f"data/pushed-{version}.parquet"}
        self.came[version] = set()
        self.stack.append(version)

    def back(self) -> None:
        """A rollback; refused where nothing counted before."""
        left = self.current
        if len(self.stack) == 1:
            with pytest.raises(SwitchRefused, match="no version counted before"):
                roll_back(self.store, *TABLE)
            return
        self._until_done(lambda store: roll_back(store, *TABLE, left))
        self.stack.pop()
        self.files[self.current] |= self.came[left]
        self.came[self.current] |= self.came[left]

    def _until_done(self, move: Any) -> None:
        """Make a move with processes that end at some change, the others beside it or after it."""
        while True:
            killing: Any = KillingStore(
                self.store, self.random.randint(1, 9), done=self.random.random() < 0.5
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

    def clean(self) -> None:
        """Clean-up of what no rollback of this world goes back to: nothing."""
        done = clean_up_versions(self.store, *TABLE, VersionRetention(keep=1000))
        assert not done.marked and not done.deleted

    def check(self) -> None:
        """The version that counts has what it has to have."""
        manifest = Manifest(self.store, *TABLE)
        assert manifest.table_version == self.current
        state = manifest.load()
        assert state.sealed is None and state.table_version == self.current
        assert paths(self.store) == self.files[self.current]
        if self.sequence:
            assert state.applied_to("me", 1, 1, ("2026-11-21",)) == self.sequence
        counts = [each.version for each in list_versions(self.store, *TABLE) if each.current]
        assert counts == [self.current]


@pytest.mark.parametrize("seed", range(12))
def test_the_version_that_counts_has_what_it_has_to_have(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    world = World(tmp_path / "store", random)
    moves = (world.write, world.write, world.swap, world.back, world.clean)
    for _ in range(STEPS):
        random.choice(moves)()
        world.check()
