"""The status is bounded in size; complete lists are available in pages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as fl
from hypothesis import given
from hypothesis import strategies as st

from ingester.client import Client
from ingester.observability.status import ReplicationStatus
from ingester.observability.status_lists import PageRequest, StatusPage, page_of, top_of
from ingester.reports.replications import PHASES, TableReport
from tests.drivers.daemon import Daemon
from tests.drivers.wire import create, http, numbers, put

NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=4)


def pages(keys: list[str], limit: int) -> Iterator[StatusPage]:
    after: str | None = ""
    while after is not None:
        page = page_of(PageRequest("tables", after, limit), [(key, key) for key in keys], str)
        yield page
        after = page.next


@given(st.lists(NAMES, unique=True, max_size=30), st.integers(1, 12))
def test_pages_have_everything_once_and_in_order(keys: list[str], limit: int) -> None:
    found = list(pages(keys, limit))
    assert [each for page in found for each in page.items] == sorted(keys)
    assert all(page.total == len(keys) and len(page.items) <= limit for page in found)
    assert len(found) == max(1, -(-len(keys) // limit)), "no page is empty but of an empty list"


def test_pages_of_what_matches_count_that_alone() -> None:
    keys = [(key, key) for key in ("a/Visits", "a/clicks", "b/visits", "visits/x")]
    first = page_of(PageRequest("tables", "", 2, "VISIT"), keys, str)
    assert (first.total, first.items, first.next) == (3, ("a/Visits", "b/visits"), "b/visits")
    assert page_of(PageRequest("tables", "b/visits", 2, "VISIT"), keys, str).items == ("visits/x",)
    assert page_of(PageRequest("tables", "", 2, "nothing"), keys, str).total == 0


def replication(name: str, alive: bool, following: int, aside: int) -> ReplicationStatus:
    tables = [TableReport(table=f"f{n}", source="", phase="following") for n in range(following)]
    tables += [TableReport(table=f"a{n}", source="", phase="set_aside") for n in range(aside)]
    return ReplicationStatus(
        origin=name,
        namespace="n",
        source="s",
        slot="s",
        alive=alive,
        tables=tuple(tables),
        phases=dict.fromkeys(PHASES, 0) | {"following": following, "set_aside": aside},
        heard_at="",
        heard_s=0.0,
    )


def test_a_status_names_replications_and_tables_that_are_not_well_first() -> None:
    well = [replication(f"w{n:02}", True, 500, 50) for n in range(20)]
    first, *rest = top_of([*well, replication("z", False, 3, 0)])
    assert (first.origin, len(first.tables)) == ("z", 3)
    assert [each.origin for each in rest] == [f"w{n:02}" for n in range(9)]
    named = [each.table[0] for each in rest[0].tables]
    assert (named.count("a"), named.count("f")) == (30, 10)
    assert named[0] == "a"
    assert rest[0].phases["following"] == 500


def test_a_daemon_with_more_tables_tells_the_busiest_and_the_others_by_pages(
    tmp_path: Path,
) -> None:
    names = [f"t{number:03}" for number in range(105)]
    with Daemon.start(tmp_path / "d") as daemon, fl.connect(daemon.flight) as client:
        for name in names:
            create(client, ("n", name), pa.schema({"v": pa.int64()}))
        put(client, ("n", "t104"), numbers(0, 50))
        status = json.loads(http(f"{daemon.http}/api/status")[2])
        assert status["counts"]["tables"] == 105
        assert len(status["tables"]) == 100
        assert status["tables"][0]["table"] == "t104"
        with closing(Client(daemon.flight)) as ours:
            assert [each["table"] for each in ours.status_list("tables")] == names
