"""The campaign in its short form, and that it notices what it is there for."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from persist.store import open_store
from tests.open_tables import campaign
from tests.open_tables.campaign import SCHEMA, Sum, Truth, sum_of
from tests.open_tables.engines import IN_PROCESS
from tests.persist.publish.tables import BuiltTable

SECONDS = 15.0


# `warnings.catch_warnings` of one reader's thread would end that of another's.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow
def test_readers_see_one_version_while_the_daemon_is_killed(tmp_path: Path) -> None:
    told = campaign.run(tmp_path, IN_PROCESS, SECONDS, seed=52)
    assert told.faults == []
    assert told.did["kills"] >= 1
    assert told.did["batches written"] >= 20
    for engine in IN_PROCESS:
        assert any(told.did[f"pinned read by {engine.name}, {each}"] for each in engine.formats)


def rows(*pairs: tuple[int, int]) -> pa.Table:
    table = [{"n": n, "w": 0, "v": v} for n, v in pairs]
    return pa.Table.from_pylist(table, SCHEMA)


def test_the_sum_of_a_version_changes_with_each_value() -> None:
    wanted = sum_of(rows((1, 2), (3, 4)))
    assert sum_of(rows((3, 4), (1, 2))) == wanted
    assert sum_of(rows((1, 2))).plus(sum_of(rows((3, 4)))) == wanted
    assert wanted.plus(sum_of(rows((3, 4))), -1) == sum_of(rows((1, 2)))
    for other in (rows((1, 2)), rows((1, 4), (3, 2)), rows((1, 2), (3, 5)), rows((2, 1), (3, 4))):
        assert sum_of(other) != wanted
    assert sum_of(rows()) == Sum(0, 0)


def test_the_sum_of_each_version_follows_from_the_manifest(tmp_path: Path) -> None:
    table = BuiltTable(open_store(str(tmp_path)), SCHEMA, key=["n"])
    table.append(rows((1, 1), (2, 2)))
    table.upsert(rows((2, 7), (3, 3)))
    table.compact()
    table.remove()
    truth = Truth(table.store, ("ns", "t"))
    assert truth.head() == table.state.version
    first, second = sum_of(rows((1, 1), (2, 2))), sum_of(rows((1, 1), (2, 7), (3, 3)))
    assert [*truth.sums.values()][-4:] == [first, second, second, Sum(0, 0)]
