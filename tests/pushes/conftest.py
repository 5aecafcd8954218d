"""A world and a controller over it, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from persist.store import ObjectStore
from tests.pushes.world import Life, ScriptedPanel, World, quick_store


@pytest.fixture
def world() -> World:
    """Four regions, a to d, that serve version 1."""
    return World()


@pytest.fixture
def panel() -> ScriptedPanel:
    """One hook that proceeds unless a test scripts another answer."""
    return ScriptedPanel()


@pytest.fixture
def store() -> Iterator[ObjectStore]:
    """An empty store."""
    with quick_store() as store:
        yield store


@pytest.fixture
def life(world: World, panel: ScriptedPanel, store: ObjectStore) -> Life:
    """A controller that has begun no push."""
    return Life(world, store, panel)
