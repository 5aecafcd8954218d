"""Single parts of a push: what tasks write, which files count, arguments of the job."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pyarrow as pa
import pytest

from ingester.pushes.config import PushConfig, RegionSettings
from ingester.pushes.driver import DriverPace
from ingester.pushes.leading import Leadership
from ingester.pushes.spark.__main__ import main
from ingester.pushes.spark.feed import led
from ingester.pushes.spark.job import DataList, decide, read_data_list, reason_of
from ingester.pushes.spark.result import PushFailed
from ingester.pushes.spark.run import PushRun
from ingester.pushes.spark.task import (
    RegionFolder,
    RegionStores,
    WriteTask,
    WrittenFile,
    each_key_once,
)
from ingester.pushes.states import Status
from ingester.spark.errors import WriteRefused
from persist.partitioning import PartitionSpec
from persist.store import StoreError, StoreRetry, open_store
from persist.table import TableDefinition
from tests.drivers.pushing import write_rows
from tests.pushes.realm import in_folders, some_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BEGAN = "2026-11-26T08:00:00+00:00"
ONCE = StoreRetry(first_s=0.001, cap_s=0.001, attempts=2)
ROWS = pa.record_batch({"k": pa.array(range(100))})
DEFINITION = TableDefinition(ROWS.schema, PartitionSpec(), ("k",))


def places_in(folder: Path, *names: str) -> tuple[RegionFolder, ...]:
    return tuple(
        RegionFolder(name, f"file://{folder / name}", {}, "shop/visits/v2") for name in names
    )


def test_a_region_that_takes_no_file_is_left_out_and_it_is_an_error_where_none_does(
    tmp_path: Path,
) -> None:
    with RegionStores(places_in(tmp_path, "a", "b"), ONCE) as places:
        places.put("data/1", pa.py_buffer(b"one"))
        (tmp_path / "b/shop/visits/v2/data/2").mkdir()
        places.put("data/2", pa.py_buffer(b"two"))
        places.put("data/3", pa.py_buffer(b"three"))
        assert {path: set(taken) for path, taken in places.taken.items()} == {
            "data/1": {"a", "b"},
            "data/2": {"a"},
            "data/3": {"a"},
        }
        assert set(places.skipped) == {"b"}
        (tmp_path / "a/shop/visits/v2/data/4").mkdir()
        with pytest.raises(StoreError, match=r"every region refuses data/4: .*a: "):
            places.put("data/4", pa.py_buffer(b"four"))
    assert (tmp_path / "b/shop/visits/v2/data/1").read_bytes() == b"one"


def test_of_two_drivers_that_have_written_the_first_to_say_so_has(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path / 'a'}")
    lists = []
    for _ in range(2):
        rows, files = WriteTask(places_in(tmp_path, "a", "b"), DEFINITION).write([ROWS])
        places = {"a": "shop/visits/v2", "b": "shop/visits/v2"}
        lists.append(DataList(rows=rows, places=places, files=tuple(files)))
    first, second = lists
    assert first != second
    assert read_data_list(store, "p") is None
    assert decide(store, "p", first) == first
    assert decide(store, "p", second) == first
    assert read_data_list(store, "p") == first
    assert first.written[:2] == (100, 1)
    assert first.complete_in("b")
    assert not first.complete_in("c")


def test_a_push_whose_files_are_gone_before_they_are_listed_is_given_up(tmp_path: Path) -> None:
    realm = in_folders(tmp_path, "ab")
    held = realm.begin(some_rows(0, 10))
    record = realm.step(
        held,
        lambda record: None,
        lambda record: all(each.table_version for each in record.regions),
    )
    regions = list(realm.regions.values())
    files = write_rows(regions, record, some_rows(0, 10))
    definition = regions[0].definition(record)
    taken = dict.fromkeys("ab", BEGAN)
    listed = tuple(WrittenFile(file.listed(definition, BEGAN), taken) for file in files)
    decide(realm.first, "p1", DataList(rows=10, places=dict.fromkeys("ab", "v2"), files=listed))
    for region in regions:
        place = region.place(record)
        place.store.delete(f"{place.root}/{files[0].path}")
    leadership = Leadership(
        store=realm.first,
        controller="c2",
        regions=lambda: realm.regions,
        panel=realm.panel,
        rules=realm.rules,
        pace=DriverPace(timedelta(seconds=0.1), timedelta(seconds=0.1)),
    )
    config = PushConfig(
        tuple(RegionSettings(name=name, url=f"file://{tmp_path / name}") for name in "ab")
    )
    job = PushRun(cast("DataFrame", None), config, realm.first, 1 << 20)
    taken_over = realm.pushes.take_over("p1", "c2", realm.now)
    with led(leadership, taken_over) as watch, pytest.raises(PushFailed, match="is missing"):
        job.see_through(watch)
    assert watch.record.status is Status.ABORTED


def test_a_key_that_stands_twice_is_found_wherever_batches_end() -> None:
    def batches(*rows: list[tuple[int, str | None]]) -> list[pa.RecordBatch]:
        schema = pa.schema([("a", pa.int64()), ("b", pa.string())])
        plain = [[{"a": a, "b": b} for a, b in part] for part in rows]
        return [pa.RecordBatch.from_pylist(part, schema=schema) for part in plain]

    key = ("a", "b")
    fine = batches([(1, "x"), (1, "y")], [], [(2, "y")], [(2, "z"), (3, "a")])
    assert list(each_key_once(fine, key)) == fine
    for bad in (
        batches([(1, "x"), (2, "y"), (2, "y")]),
        batches([(1, "x"), (2, "y")], [], [(2, "y"), (3, "a")]),
    ):
        with pytest.raises(WriteRefused, match="a = 2, b = 'y'"):
            list(each_key_once(bad, key))
    with pytest.raises(WriteRefused, match="'b' of the primary key is null"):
        list(each_key_once(batches([(1, "x"), (1, None)]), key))


def test_a_failed_job_is_told_in_the_one_line_that_tells() -> None:
    spark = (
        "Job aborted: Task 3 failed 4 times: org.apache.spark.api.python.PythonException:"
        " Traceback (most recent call last):\n  File x\n{}\n SQLSTATE: 38000\n\tat org.apache.x"
    )
    refused = RuntimeError(spark.format("ingester.spark.errors.WriteRefused: column 'v': no"))
    assert reason_of(refused) == "column 'v': no"
    other = RuntimeError(spark.format("builtins.ZeroDivisionError: division by zero"))
    assert reason_of(other) == "ZeroDivisionError: division by zero"
    assert reason_of(KeyError()) == "KeyError: no message"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["ns", "t", "--parquet", "x"], "--config"),
        (["--config", "{config}", "ns", "t"], "one of the arguments --parquet --sql --table"),
        (["--config", "{config}", "ns", "t", "--sql", "x", "--param", "p"], "NAME=VALUE"),
        (["--config", "{config}", "ns", "t", "--table", "x"], "NAMESPACE/TABLE"),
    ],
)
def test_arguments_that_make_no_sense_are_refused_by_the_code_2(
    arguments: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "push.toml"
    given = [text.format(config=config) for text in arguments]
    with pytest.raises(SystemExit) as left:
        main(given)
    assert left.value.code == 2
    assert told in capsys.readouterr().err
    config.write_text("[regions.a]\nurl = 3\n")
    assert main(["--config", str(config), "ns", "t", "--sql", "select 1"]) == 2
    assert "regions.a" in capsys.readouterr().err
