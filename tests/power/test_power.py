"""The short form of the power cuts, and tests of the file system itself."""

from __future__ import annotations

import pytest

from tests.drivers.unsynced import SECTOR
from tests.power.forgetful import File, Folder, Node, after_cut
from tests.power.mounting import why_not_mountable
from tests.power.planted import CHECK, SYNCS

_MISSING = why_not_mountable()
needs_fuse = pytest.mark.skipif(_MISSING is not None, reason=f"needs FUSE: {_MISSING}")


def _file(folder: Folder, name: str) -> Node | None:
    return folder.now.get(name)


def test_synced_data_survives_and_other_data_may_not() -> None:
    root, file = Folder(), File()
    root.change((), (("f", file),))
    file.write(0, b"a" * 3 * SECTOR)
    lost = kept = 0
    for seed in range(200):
        found = _file(after_cut(root, seed), "f")
        lost += found is None
        kept += isinstance(found, File) and bytes(found.now) == b"a" * 3 * SECTOR
    assert lost
    assert kept
    root.sync()
    file.sync()
    file.write(SECTOR, b"b" * SECTOR)
    for seed in range(50):
        found = _file(after_cut(root, seed), "f")
        assert isinstance(found, File)
        first, rest = bytes(found.now[:SECTOR]), bytes(found.now[2 * SECTOR :])
        assert first == rest == b"a" * SECTOR
        assert bytes(found.now[SECTOR : 2 * SECTOR]) in (b"a" * SECTOR, b"b" * SECTOR)


def test_unsynced_names_are_lost() -> None:
    root = Folder()
    for number in range(4):
        root.change((), ((str(number), File()),))
    root.change(("0",), (("4", File()),))
    left = {tuple(sorted(after_cut(root, seed).now)) for seed in range(200)}
    assert left == {(), ("0",), ("0", "1"), ("0", "1", "2"), ("0", "1", "2", "3"),
                    ("1", "2", "3", "4")}  # fmt: skip


@needs_fuse
def test_a_daemon_keeps_its_promises_over_power_cuts() -> None:
    from tests.power.__main__ import campaign

    tally = campaign(None, lives=8, seed=20_261_121)
    assert tally.faults == []
    assert tally.operations > 0


@needs_fuse
@pytest.mark.parametrize("kind", SYNCS)
def test_a_daemon_without_one_kind_of_sync_is_caught(kind: str) -> None:
    from tests.power.__main__ import campaign

    assert campaign(kind, lives=30, seed=7).faults


def test_two_daemons_on_one_table_lose_and_double_nothing() -> None:
    from tests.power.__main__ import race

    tally = race(None, rounds=3, seed=20_261_121)
    assert tally.faults == []
    assert tally.operations > 0


@pytest.mark.slow
def test_daemons_without_the_check_of_a_commit_are_caught() -> None:
    from tests.power.__main__ import race

    assert race(CHECK, rounds=10, seed=7).faults
