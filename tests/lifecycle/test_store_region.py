"""Real regions: a push through three stores, with data that a job has put into some of them."""

from __future__ import annotations

from pathlib import Path

from ingester.lifecycle.push_status import decode_push_status, status_path
from ingester.lifecycle.status import Status
from persist.manifest import list_tables
from tests.lifecycle.realm import TABLE, Job, in_folders, some_rows


def test_a_push_makes_the_table_fills_each_region_and_goes_live_in_order(tmp_path: Path) -> None:
    realm = in_folders(tmp_path, "abc")
    record = realm.push(some_rows(0, 1000))
    assert record.status is Status.SERVING
    assert realm.states() == [(2, 1000)] * 3
    # The next one has a column more, and its data is listed in one region alone.
    rows = some_rows(0, 900).append_column("x", [1.5] * 900)
    held = realm.begin(rows, "p2")
    record = realm.lead(held, Job(realm, rows, into="ab", listed="b").hear)
    assert record.status is Status.SERVING
    assert realm.states() == [(3, 900)] * 3
    for region in realm.regions.values():
        compared = region.statistics(record)
        assert compared is not None
        assert compared.current is not None
        assert (compared.new.rows, compared.current.rows) == (900, 1000)
        assert compared.new.nulls == {"n": 0, "s": 0, "x": 0}
        told = decode_push_status(region.home.store.get(status_path("p2")))
        assert (told.status, told.kept_in.region) == ("SERVING", "a")
        assert list_tables(region.home.store) == [TABLE]
