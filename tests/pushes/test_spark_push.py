"""Whole pushes from a frame to three regions: exactly the given rows go live, or none."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import ingester.pushes.spark.feed
import ingester.pushes.spark.run
from ingester.pushes.config import HookConfigError
from ingester.pushes.hook_runner import HookRunner
from ingester.pushes.leading import HEARTBEAT, see_through
from ingester.pushes.spark import PushConfig, PushFailed, PushRefused, PushResult, push
from ingester.pushes.spark.feed import leadership_of
from ingester.pushes.spark.frames import partition_column
from ingester.pushes.spark.result import PushProgress
from ingester.pushes.spark.task import RegionFolder, WriteTask
from ingester.pushes.states import Status
from ingester.pushes.store import push_folders
from ingester.spark import read_table
from persist.manifest import Manifest, Proposal, WriterIdentity, commit, current_version
from persist.partitioning import PartitionSpec, partition_values
from persist.store import open_store
from persist.table import TableDefinition
from tests.drivers.s3_server import S3Server
from tests.drivers.waiting import until
from tests.pushes.spark_pushes import (
    assert_same_files,
    assert_same_rows,
    everything,
    frame_of,
    on,
    plain_rows,
    pushes_of,
    regions_in,
    state_of,
    store_of,
)

pytestmark = pytest.mark.spark

TABLE = ("shop", "visits")
_START = 1_764_115_200_000_000  # 2025-11-26 00:00 UTC
DAYS = 6


def visits(spark: SparkSession, rows: int, tasks: int = 5) -> DataFrame:
    """Return rows of six days; every task has some of each."""
    spread = f"timestamp_micros({_START} + id * 3600000000 % {DAYS * 86_400_000_000})"
    return spark.range(0, rows, 1, tasks).selectExpr(
        "id", f"{spread} as time", "concat('h', id % 7) as host", "id / 3 as v"
    )


def test_rows_are_live_in_three_regions_and_the_next_version_may_have_other_columns(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, first = regions_in(tmp_path), visits(spark, 4000)
    by_the_page = pushed_as_documented(first, config, tmp_path, monkeypatch)
    result = by_the_page()
    assert result.live
    assert (result.rows, result.files) == (4000, DAYS), "no task has written a day of another's"
    files = assert_same_files(config, TABLE)
    assert result.bytes == sum(map(len, files.values()))
    for region in config.regions:
        assert_same_rows(frame_of(spark, region, TABLE), first)
    plain = plain_rows(config.regions[2], TABLE).sort_by("id")
    assert plain.column("id").to_pylist() == list(range(4000))
    assert plain.column("host").to_pylist() == [f"h{i % 7}" for i in range(4000)]

    # One column less and one more; the partition columns from folder names are read as well.
    second = first.drop("v").withColumn("tags", F.array("host")).withColumn("time_day", F.lit("x"))
    result = push(second, *TABLE, config=config, expected_rows=4000)
    assert [each.table_version for each in result.regions] == [3, 3, 3]
    assert [each.previous for each in result.regions] == [2, 2, 2]
    assert_same_files(config, TABLE)
    found = frame_of(spark, config.regions[1], TABLE)
    assert found.columns == ["id", "time", "host", "v", "tags"]
    assert_same_rows(found, second.drop("time_day").withColumn("v", F.lit(None).cast("double")))
    old = read_table(spark, config.regions[0].url, *TABLE, table_version=2)
    assert old.count() == 4000, "the version before stays for a rollback"
    # The documented hook compares both versions: a column with values may not become null.
    empty = second.withColumn("tags", F.lit(None).cast("array<string>"))
    with pytest.raises(PushFailed, match=r"ABORTED: pre_version_swap: .*tags"):
        pushed_as_documented(empty, config, tmp_path, monkeypatch)("another")


def pushed_as_documented(
    frame: DataFrame, config: PushConfig, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., PushResult]:
    """Return the call in docs/spark.md, with its configuration and, by default, its push id."""
    page = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()
    section = page.split("## Pushes")[1]
    toml = section.split("```toml\n")[1].split("```")[0]
    for region, name in zip(config.regions, ("berlin", "oslo", "lima"), strict=True):
        toml = toml.replace(f"file:///srv/{name}", region.url)
    (folder / "push.toml").write_text(toml)
    code = section.split("```python\n")[1].split("```")[0]

    def run(push_id: str = "visits-2026-11-26") -> PushResult:
        monkeypatch.chdir(folder)
        names = {"df": frame}
        exec(code.replace("visits-2026-11-26", push_id), names)
        result = names["result"]
        assert isinstance(result, PushResult)
        return result

    return run


@pytest.mark.s3
def test_odd_types_nulls_and_no_rows_at_all_come_back_as_they_were_from_a_bucket_too(
    spark: SparkSession, tmp_path: Path
) -> None:
    with S3Server.start() as server:
        check_odd_rows(spark, regions_in(tmp_path, bucket=server))


def check_odd_rows(spark: SparkSession, config: PushConfig) -> None:
    """Push rows of many types, then none, and find them in each region."""
    moment = dt.datetime(1969, 12, 31, 23, 59, 59, 999_999)
    rows = [
        (1, Decimal("12.345"), [1, None], {"k": [1.5]}, (b"\xff", "ü"), moment, True, "x"),
        (2, None, None, None, None, None, None, None),
        (3, Decimal("-0.001"), [], {}, (None, ""), dt.datetime(9999, 1, 1), False, ""),
    ]
    frame = spark.createDataFrame(
        rows,
        "n tinyint, d decimal(20,3), l array<int>, m map<string, array<double>>,"
        " s struct<b: binary, t: string>, w timestamp_ntz, y boolean, t string",
    ).selectExpr(
        "*", "to_date(w) as day", "timestamp_micros(n - 2) as at", "null as nothing", "3f as f"
    )
    push(frame, *TABLE, config=config, partition_by=["bucket(3, t)", "month(day)"])
    for region in config.regions:
        found = frame_of(spark, region, TABLE)
        assert "nothing" not in found.columns
        assert found.orderBy("n").collect() == frame.drop("nothing").orderBy("n").collect()
    assert_same_files(config, TABLE)
    [types] = {plain_rows(region, TABLE).schema.field("m").type for region in config.regions}
    assert types.item_type.value_type == pa.float64()

    result = push(frame.limit(0), *TABLE, config=config)
    assert (result.live, result.rows, result.files) == (True, 0, 0)
    assert frame_of(spark, config.regions[0], TABLE).count() == 0


def test_a_table_of_nanoseconds_and_narrow_integers_takes_what_spark_has_for_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    config = regions_in(tmp_path)
    schema = pa.schema(
        [("time", pa.timestamp("ns", "Europe/Berlin")), ("u", pa.uint16()), ("n", pa.int64())]
    )
    definition = TableDefinition(schema, PartitionSpec.parse(["hour(time)"]), timestamp_unit="ns")
    before = pa.record_batch({"u": pa.array([1, None, None], pa.uint16()), "n": [1, 2, None]})
    for region in config.regions:
        manifest = Manifest(open_store(region.url), *TABLE)
        place = RegionFolder(region.name, region.url, {}, manifest.root)
        [file] = WriteTask((place,), definition).write([before])[1]
        unknown = msgspec.structs.replace(file.add, stats={})
        actions = [*definition.actions(), unknown]
        commit(manifest, None, Proposal(actions), WriterIdentity("t", "r", 1))
    frame = spark.range(50).selectExpr(
        f"timestamp_micros({_START} + id * 600000001) as time",
        "cast(id + 65486 as int) as u",
        "id as n",
    )
    push(frame, *TABLE, config=config, push_id="first")
    # Hooks that compare versions also get the old one's null counts, which no manifest has.
    led = leadership_of(
        config, open_store(config.regions[0].url), "x", HookRunner(config.hooks, []), spark
    )
    compared = led.regions()["b"].statistics(pushes_of(config).newest("first").record)
    assert compared is not None
    assert compared.current is not None
    assert compared.current.nulls == {"time": 3, "u": 2, "n": 1}
    assert compared.new.nulls == {"time": 0, "u": 0, "n": 0}
    for region in config.regions:
        assert_same_rows(frame_of(spark, region, TABLE), frame)
        plain = plain_rows(region, TABLE).sort_by("n")
        times = plain.column("time").cast(pa.timestamp("ns")).cast(pa.int64()).to_pylist()
        assert times == [(_START + i * 600_000_001) * 1000 for i in range(50)]
    with pytest.raises(PushFailed, match="'u': 65536 is not a value of uint16"):
        push(frame.selectExpr("time", "u + 1 as u", "n"), *TABLE, config=config)
    assert {current_version(open_store(r.url), *TABLE) for r in config.regions} == {2}


def test_each_key_is_there_once_in_files_that_do_not_overlap(
    spark: SparkSession, tmp_path: Path
) -> None:
    config, table = regions_in(tmp_path), ("shop", "keyed")
    frame = visits(spark, 5000).selectExpr("id * 7919 % 5000 as id", "host", "v")
    key = ["host", "id"]
    result = push(
        frame,
        *table,
        config=config,
        primary_key=key,
        partition_by=["identity(host)"],
        target_file_bytes=6_000,
    )
    assert result.files > 14
    assert_same_files(config, table)
    state = state_of(config.regions[0], table)
    bounds: dict[object, list[tuple[int, int]]] = {}
    for add in state.files.values():
        low, high = add.stats["id"].min, add.stats["id"].max
        assert isinstance(low, int)
        assert isinstance(high, int)
        bounds.setdefault(add.values, []).append((low, high))
    assert len(bounds) == 7
    for ranges in bounds.values():
        ends = [end for pair in sorted(ranges) for end in pair]
        assert ends == sorted(ends)
    assert_same_rows(frame_of(spark, config.regions[2], table), frame)

    twice = frame.unionAll(frame.where("id = 4321"))
    with pytest.raises(PushFailed, match=r"with one primary key \(host = 'h\d', id = 4321\)"):
        push(twice, *table, config=config)
    nulls = frame.withColumn("host", F.when(F.col("id") > 7, F.col("host")))
    with pytest.raises(PushFailed, match="'host' of the primary key is null in a row") as failed:
        push(nulls, *table, config=config)
    assert {each.status for each in failed.value.result.regions} == {Status.ABORTED}
    assert state_of(config.regions[0], table).files == state.files, "what was live is live"


def test_what_cannot_be_is_refused_by_name_and_nothing_is_written(
    spark: SparkSession, tmp_path: Path
) -> None:
    config = regions_in(tmp_path)
    frame = visits(spark, 20)
    push(frame, *TABLE, config=config, push_id="first")
    other = ("shop", "other")
    for region, kind in zip(config.regions, (pa.int64(), pa.int64(), pa.string()), strict=True):
        definition = TableDefinition(pa.schema([("a", kind)]), PartitionSpec())
        manifest = Manifest(open_store(region.url), *other)
        commit(manifest, None, Proposal(definition.actions()), WriterIdentity("t", "r", 1))
    before = everything(config)
    refused = partial(pytest.raises, PushRefused)
    with refused(match="'v': table has double, push has string"):
        push(frame.withColumn("v", F.lit("x")), *TABLE, config=config)
    with refused(match=r"partition_by: table has \['day\(time\)'\], push has \['hour\(time\)'\]"):
        push(frame, *TABLE, config=config, partition_by=["hour(time)"])
    with refused(match=r"regions a and c differ: column 'a': int64 and string"):
        push(spark.range(1).selectExpr("id as a"), *other, config=config)
    with refused(match="'i': Spark's type interval day"):
        push(spark.sql("select interval 3 days as i"), "shop", "new", config=config)
    with refused(match=r"'l': Spark's type void"):
        push(spark.sql("select array() as l"), *TABLE, config=config)
    with refused(match="the frame has duplicate columns 'id'"):
        push(frame.select("id", "id"), *TABLE, config=config)
    with refused(match="'ID' differs from the table's 'id' only in case"):
        push(frame.selectExpr("id as ID"), *TABLE, config=config)
    with refused(match="primary_key: no column 'k'"):
        push(frame, "shop", "new", config=config, primary_key=["k"])
    with refused(match="push first is of table shop/visits"):
        push(frame, *other, config=config, push_id="first")
    with refused(match="'more': frame has int32, the push was started with none"):
        push(frame.withColumn("more", F.lit(1)), *TABLE, config=config, push_id="first")
    with refused(match="push first has regions a, b, c, not a, b"):
        push(frame, *TABLE, config=config, regions=["a", "b"], push_id="first")
    with refused(match="push_id '../x' does not match"):
        push(frame, *TABLE, config=config, push_id="../x")
    with pytest.raises(HookConfigError, match="nowhere"):
        push(frame, *TABLE, config=regions_in(tmp_path, classes=["nowhere:Hook"]))
    gone = regions_in(tmp_path / "gone")
    (tmp_path / "gone/a").rmdir()
    with refused(match="region a, where pushes are stored: the folder of its store does not exist"):
        push(frame, *TABLE, config=gone)
    assert everything(config) == before


def test_a_push_that_is_over_says_that_other_rows_need_another_id(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = regions_in(tmp_path)
    frame = spark.range(20).selectExpr("id", "concat('h', id) as host")
    push(frame, *TABLE, config=config, push_id="first")
    other = frame.limit(3)
    assert push(other, *TABLE, config=config, push_id="first").rows == 20
    assert "push first is over, with 20 rows: the rows of this call were neither" in caplog.text
    with pytest.raises(PushRefused, match="over, with 20 rows, not the expected 3: push other"):
        push(other, *TABLE, config=config, push_id="first", expected_rows=3)
    assert push(other, *TABLE, config=config, push_id="second", expected_rows=3).rows == 3


def test_what_stands_for_a_partition_in_spark_is_what_files_are_laid_out_by(
    spark: SparkSession,
) -> None:
    hours = "timestampadd(HOUR, 7 * (id - 100), {})"
    frame = spark.range(200).selectExpr(
        "if(id % 7 = 0, null, id * 1000000007) as n",
        "if(id % 5 = 0, null, concat('h', id % 13)) as host",
        f"{hours.format('timestamp_seconds(0)')} as time",
        f"""{hours.format("timestamp_ntz'1970-01-01'")} as wall""",
        "date_add(date'1970-01-01', cast(id * 9 - 900 as int)) as day",
        "cast(id * 0.25 as decimal(9, 2)) as price",
        "cast(cast(id as string) as binary) as raw",
    )
    types = (pa.int64(), pa.string(), pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.date32())
    kinds = (*types, pa.decimal128(9, 2), pa.binary())
    schema = pa.schema(list(zip(frame.columns, kinds, strict=True)))
    spec = PartitionSpec.parse(
        [
            f"{each}({name})"
            for name in ("time", "wall")
            for each in ("year", "month", "day", "hour")
        ]
        + ["year(day)", "month(day)", "day(day)", "identity(host)"]
        + [f"bucket(5, {name})" for name in schema.names]
    )
    made = {f"p{i}": partition_column(each, schema) for i, each in enumerate(spec.fields)}
    rows = frame.withColumns(made).toArrow().combine_chunks()
    batch = rows.select(schema.names).cast(schema).to_batches()[0]
    for i, (values, places) in enumerate(partition_values(batch, spec)):
        pairs = {
            (mine, int(its)) for mine, its in zip(rows[f"p{i}"].to_pylist(), places, strict=True)
        }
        field = spec.fields[i]
        assert len({its for _, its in pairs}) == len(values)
        if field.transform == "bucket" and field.column == "n":
            pairs = {(mine, its) for mine, its in pairs if values[its] is not None}
        assert len(pairs) == len({mine for mine, _ in pairs}) == len({its for _, its in pairs}), (
            field
        )


def test_a_count_that_differs_or_a_task_that_fails_ends_the_push_with_its_reason(
    spark: SparkSession, tmp_path: Path
) -> None:
    config = regions_in(tmp_path)
    frame = visits(spark, 200)
    with pytest.raises(PushFailed, match="the frame had 200 rows instead of the expected 201"):
        push(frame, *TABLE, config=config, expected_rows=201)
    broken = frame.selectExpr("id", "if(id = 199, raise_error('it is the last one'), v) as v")
    with pytest.raises(PushFailed, match=r"not written: .*it is the last one"):
        push(broken, *TABLE, config=config, regions=["b", "c"])
    assert state_of(config.regions[2], TABLE).rows == 0
    assert state_of(config.regions[2], TABLE).table_version == 1


def test_a_push_that_is_given_up_ends_its_spark_job(spark: SparkSession, tmp_path: Path) -> None:
    config = regions_in(tmp_path)
    begun = tmp_path / "begun"

    def never(batches: object) -> object:
        begun.touch()
        threading.Event().wait(300)
        yield from ()

    stuck = visits(spark, 10, tasks=1).mapInArrow(never, "id bigint")  # type: ignore[arg-type]

    def give_up() -> None:
        until(begun.exists, "the task", 240)
        pushes_of(config).request("stuck", "abort", "not today", dt.datetime.now(dt.UTC))

    thread = threading.Thread(target=give_up)
    thread.start()
    with pytest.raises(PushFailed, match="ABORTED: not today"):
        push(stuck, *TABLE, config=config, push_id="stuck")
    thread.join()
    assert not spark.sparkContext.statusTracker().getActiveJobsIds()
    assert visits(spark, 10).count() == 10, "the session is as it was"


def test_a_region_that_is_away_meanwhile_gets_the_same_files_when_it_is_back(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingester.pushes.spark.run, "OTHERS_S", 0.1)
    config = regions_in(tmp_path)
    store = tmp_path / "c"
    store.rmdir()
    back = on("a COMPLETED", lambda record: store.mkdir())
    frame = visits(spark, 500)
    result = push(frame, *TABLE, config=config, progress=back)
    assert result.live
    # Nobody could tell how the table of the region that was away numbers its columns.
    assert_same_files(config, TABLE, numbered=False)
    assert_same_rows(frame_of(spark, config.regions[2], TABLE), frame)


def test_files_for_regions_that_number_columns_differently_have_no_numbers(
    spark: SparkSession, tmp_path: Path
) -> None:
    config = regions_in(tmp_path)
    frame = visits(spark, 100)
    push(frame, *TABLE, config=config)
    last = config.regions[2]
    manifest = Manifest(store_of(last), *TABLE)
    state = manifest.load()
    new = pa.schema([*TableDefinition.of_state(state).schema, pa.field("b", pa.string())])
    wider = TableDefinition.of_state(state).with_schema(new)
    commit(manifest, state, Proposal([wider.schema_action()]), WriterIdentity("other", "x", 1))
    # Its number in the last region is that of `b`, which the other regions append later.
    more = frame.withColumn("a", F.lit("a")).withColumn("b", F.lit("b"))
    assert push(more, *TABLE, config=config).live
    orders = [TableDefinition.of_state(state_of(one, TABLE)).schema.names for one in config.regions]
    assert orders[0][-2:] == ["a", "b"]
    assert orders[2][-2:] == ["b", "a"]
    assert_same_files(config, TABLE, numbered=False)
    for region in config.regions:
        assert_same_rows(frame_of(spark, region, TABLE), more)


def test_somebody_else_may_lead_a_push_whose_data_is_written_here(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without another leader the job reports that its push has none."""
    monkeypatch.setattr(ingester.pushes.spark.feed, "UNLED_AFTER_S", 1.0)
    monkeypatch.setattr(ingester.pushes.spark.feed, "UNLED_AGAIN_S", 0.5)
    config = regions_in(tmp_path, order="in_order")
    panel = HookRunner(config.hooks, [])
    store = open_store(config.regions[0].url)
    leadership = leadership_of(config, store, "another", panel, spark)
    over = threading.Event()
    leader = threading.Thread(target=lambda: see_through(leadership, "led", over))
    unled: list[str] = []

    def hear(progress: PushProgress) -> None:
        if progress.what.startswith(ingester.pushes.spark.feed.UNLED):
            unled.append(progress.what)
            if len(unled) == 2:
                (folder,) = push_folders(store)
                assert folder.abandoned(store.now(), HEARTBEAT.gone_after), "a controller leads it"
                leader.start()

    frame = visits(spark, 100)
    result = push(frame, *TABLE, config=config, push_id="led", lead=False, progress=hear)
    leader.join(60)
    assert "`ingester pushes resume led`" in unled[0]
    assert result.live
    history = pushes_of(config).newest("led").record.history
    swaps = [event.region for event in history if event.region and event.what == "SERVING"]
    assert swaps == ["a", "b", "c"]


def test_hooks_that_fail_are_logged_and_what_all_have_said_is_in_the_result(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = regions_in(
        tmp_path, classes=["tests.pushes.spark_pushes:FailsAfterwards"], wait_interval="1s"
    )
    result = push(spark.range(3), *TABLE, config=config, push_id="p")
    assert result.live, "what fails after a step counts as proceed"
    asked = {each.method: each for each in result.hooks}
    assert (asked["post_version_swap"].calls, asked["pre_version_swap"].calls) == (3, 4)
    assert asked["post_version_swap"].outcomes == {"failed": 3}
    assert asked["pre_version_swap"].outcomes == {"proceed": 3, "wait": 1}
    assert asked["pre_version_swap"].running_s > 0
    told = [each.getMessage() for each in caplog.records if each.name == "ingester.push"]
    assert len(told) == 3
    assert all("FailsAfterwards: post_version_swap in region" in each for each in told)
    assert all(each.endswith("the disk is full; counts as proceed") for each in told)
