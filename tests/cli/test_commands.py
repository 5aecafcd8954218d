"""The commands against a real daemon."""

import json
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from ingester.client import Client
from tests.cli.conftest import Run, check_refused, run_command
from tests.drivers.daemon import Daemon

ROWS = pa.table(
    {
        "host": ["h1", "h2", None],
        "v": pa.array([1, 2, 3], pa.int64()),
        "at": pa.array([0, 1, 2], pa.timestamp("us")),
        "tags": [["a", "b"], [], None],
    }
)


@pytest.fixture(scope="module")
def written(served: Daemon) -> str:
    """A namespace whose table ``t`` holds ROWS, for tests that only read."""
    with Client(served.flight) as client:
        client.write("written", "t", ROWS)
    return "written"


def write_file(kind: str, path: Path, table: pa.Table = ROWS) -> Path:
    if kind == "parquet":
        pyarrow.parquet.write_table(table, path)
    elif kind == "csv":
        pyarrow.csv.write_csv(table.drop_columns("tags"), path)
    elif kind == "jsonl":
        path.write_text('{"host": "h1", "v": 1}\n{"host": "h2", "v": 2}\n{"v": 3}\n')
    else:
        open_writer = pa.ipc.new_file if kind == "arrow" else pa.ipc.new_stream
        with path.open("wb") as file, open_writer(file, table.schema) as writer:
            writer.write_table(table)
    return path


@pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl", "arrow", "ipc"])
@pytest.mark.parametrize("piped", [False, True])
def test_every_input_format_is_written_and_read_back(
    run: Run, served: Daemon, namespace: str, tmp_path: Path, kind: str, piped: bool
) -> None:
    path = write_file(kind, tmp_path / f"rows.{kind}")
    format_ = ["--input-format", "arrow" if kind == "ipc" else kind]
    source = ["-", *format_] if piped else [path]
    stdin = path.read_bytes() if piped else b""
    written = run("write", namespace, "t", *source, "--json", stdin=stdin)
    assert written.returncode == 0, written.stderr
    facts = json.loads(written.stdout)
    assert (facts["rows"], facts["batches"], facts["epoch"]) == (3, 1, 1)
    with Client(served.flight) as client:
        found = client.query(namespace, "t", ["v", "host"]).to_pylist()
    assert found == [
        {"v": 1, "host": "h1"},
        {"v": 2, "host": "h2"},
        {"v": 3, "host": None},
    ]


@pytest.mark.parametrize("kind", ["table", "csv", "jsonl"])
def test_times_beyond_pythons_range_are_written(
    run: Run, served: Daemon, namespace: str, kind: str
) -> None:
    far = pa.array([1 << 62, 0, None], pa.timestamp("us", "UTC"))
    days = pa.array([10**7, 0, None], pa.date32())
    lists = pa.array([[1 << 62], [0], None], pa.list_(pa.timestamp("us", "UTC")))
    with Client(served.flight) as client:
        client.write(namespace, "t", pa.table({"at": far, "day": days, "all": lists}))
    done = run("query", namespace, "t", "--format", kind)
    assert done.returncode == 0, done.stderr
    found = done.stdout.decode()
    far_away = "148108-07-06 14:00:27.387904Z"
    for text in (far_away if kind == "csv" else far_away.replace(" ", "T"), "29349-01-26"):
        assert text in found
    assert found.count("1970-01-01") == 3
    assert found.count("148108-07-06") == 2


@pytest.mark.parametrize("kind", ["parquet", "arrow", "csv", "jsonl"])
@pytest.mark.parametrize("to_file", [False, True])
def test_every_output_format_contains_the_rows(
    run: Run, written: str, tmp_path: Path, kind: str, to_file: bool
) -> None:
    output = tmp_path / f"out.{kind}"
    options = ["--output", output] if to_file else ["--format", kind]
    done = run("query", written, "t", *options)
    assert done.returncode == 0, done.stderr
    if not to_file:
        output.write_bytes(done.stdout)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    if kind == "parquet":
        assert pyarrow.parquet.read_table(output).to_pylist() == ROWS.to_pylist()
    elif kind == "arrow":
        opened = pa.ipc.open_file(output) if to_file else pa.ipc.open_stream(output.read_bytes())
        assert opened.read_all().to_pylist() == ROWS.to_pylist()
    elif kind == "csv":
        assert output.read_text().splitlines()[:2] == [
            '"host","v","at","tags"',
            '"h1",1,1970-01-01 00:00:00.000000,"[""a"",""b""]"',
        ]
    else:
        first = json.loads(output.read_text().splitlines()[0])
        assert first == {"host": "h1", "v": 1, "at": "1970-01-01T00:00:00", "tags": ["a", "b"]}


def test_a_filter_and_a_limit_select_rows(run: Run, written: str) -> None:
    chosen = run(
        "query", written, "t", "--filter", "host = 'h1' or v in (2, 9) and host is not null",
        "--columns", "v", "--format", "csv",
    )  # fmt: skip
    assert chosen.stdout == b'"v"\n1\n2\n'
    table = run("query", written, "t", "--limit", "1", "--columns", "host,v")
    assert table.stdout.split() == [b"host", b"v", b"h1", b"1"]


def test_text_columns_of_an_existing_table_stay_text(
    run: Run, namespace: str, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text("zip,v\nx7,1\n")
    (tmp_path / "b.csv").write_text("zip,v\n007,2\n")
    done = run("write", namespace, "t", "a.csv", "b.csv")
    assert done.returncode == 0, done.stderr
    assert b"acknowledged 2 rows in 2 operations" in done.stdout
    found = run("query", namespace, "t", "--json").stdout
    assert [json.loads(line)["zip"] for line in found.splitlines()] == ["x7", "007"]


def test_a_large_file_is_sent_in_several_operations(
    run: Run, namespace: str, tmp_path: Path
) -> None:
    table = pa.table({"v": range(25_000)})
    path = write_file("parquet", tmp_path / "rows.parquet", table)
    done = run("write", namespace, "t", path, "--batch-rows", "10000", "--json")
    assert (json.loads(done.stdout)["rows"], json.loads(done.stdout)["batches"]) == (25_000, 3)


def test_a_file_resent_with_its_origin_adds_nothing(
    run: Run, namespace: str, tmp_path: Path
) -> None:
    path = write_file("parquet", tmp_path / "rows.parquet")
    origin = ["--origin", namespace, "--first-sequence", "1"]
    for expected in (0, 3):
        done = run("write", namespace, "t", path, *origin, "--json")
        assert json.loads(done.stdout)["known_rows"] == expected
    found = run("query", namespace, "t", "--json").stdout
    assert len(found.splitlines()) == 3


def test_persist_moves_rows_from_buffer_to_files(run: Run, namespace: str, tmp_path: Path) -> None:
    run("write", namespace, "t", write_file("parquet", tmp_path / "rows.parquet"))

    def described() -> dict[str, dict[str, int]]:
        listed = json.loads(run("tables", "--json").stdout)
        return next(one for one in listed if one["namespace"] == namespace)

    assert described()["buffered"]["rows"] == 3
    done = run("persist", namespace, "t", "--json")
    assert done.returncode == 0, done.stderr
    (persisted,) = json.loads(done.stdout)
    assert (persisted["namespace"], persisted["table"]) == (namespace, "t")
    assert (described()["buffered"]["rows"], described()["persisted"]["rows"]) == (0, 3)
    version = str(persisted["manifest_version"])
    of_version = run("query", namespace, "t", "--version", version, "--json").stdout
    assert len(of_version.splitlines()) == 3
    assert namespace.encode() in run("tables").stdout


def test_status_shows_the_daemons_identity(run: Run, served: Daemon) -> None:
    status = json.loads(run("status", "--json").stdout)
    assert status["identity"]["ingester_id"] == served.ready["ingester_id"]
    assert b"accepted" in run("status").stdout


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["query", "none", "t"], 1, "none"),
        (["query", "none", "t", "--filter", "a ="], 2, "expected a value"),
        (["query", "none", "t", "--format", "xml"], 2, "'xml' is not one of"),
        (["query", "none", "t", "--columns", "a,,b"], 2, "empty name"),
        (["query", "none", "t", "--output", "x.what"], 2, "give --format"),
        (["write", "n", "t", "-"], 2, "--input-format"),
        (["write", "n", "t", "a.what"], 2, "--input-format"),
        (["write", "n", "t", "missing.csv"], 1, "No such file"),
        (["write", "n", "t", "x.csv", "--first-sequence", "1"], 2, "needs --origin"),
        (["write", "n", "t", "x.csv", "--retry-for", "soon"], 2, "not a duration"),
        (["write", "n", "t"], 2, ""),
        (["bogus"], 2, ""),
        (["serve", "--set", "persist.max_aeg=1s"], 2, "did you mean persist.max_age?"),
        (["serve", "--flight", "nowhere"], 2, "is not HOST:PORT"),
        (["wal", "verify", "nowhere"], 1, "nowhere is not a folder"),
    ],
)
def test_a_failure_is_one_line_and_its_exit_code(
    run: Run, arguments: list[str], code: int, message: str
) -> None:
    check_refused(run(*arguments), code, message)


def test_a_missing_daemon_is_exit_code_3_at_once(run: Run, served: Daemon, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("v\n1\n")
    for command in (["tables"], ["write", "n", "t", "a.csv"], ["query", "n", "t"]):
        failed = run(*command, "--endpoint", "grpc://127.0.0.1:9")
        assert failed.returncode == 3
        assert b"cannot connect" in failed.stderr


def test_a_broken_input_reports_the_rows_acknowledged_before_it(
    run: Run, namespace: str, tmp_path: Path
) -> None:
    (tmp_path / "good.csv").write_text("v\n1\n2\n")
    (tmp_path / "bad.csv").write_text("v\nx\n")
    failed = run("write", namespace, "t", "good.csv", "bad.csv")
    assert failed.returncode == 1
    assert b"acknowledged 2 rows" in failed.stdout
    assert b"bad.csv" in failed.stderr


def test_config_shows_values_and_their_sources(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text('[persist]\nmax_age = "2s"\n')
    shown = run_command(
        "config", "--config", "c.toml", "--store", "s3://u:p@h/b", "--json",
        cwd=tmp_path, INGESTER_WAL__FSYNC="off",
    )  # fmt: skip
    facts = json.loads(shown.stdout)
    assert facts["persist.max_age"] == {"value": "2s", "source": "file c.toml"}
    assert facts["wal.fsync"] == {"value": "off", "source": "environment INGESTER_WAL__FSYNC"}
    assert facts["store"] == {"value": "s3://***@h/b", "source": "flag"}
    assert facts["query.max_streams"] == {"value": 1000, "source": "default"}
    assert b"persist.max_age" in run_command("config", cwd=tmp_path).stdout


def test_the_log_of_a_stopped_daemon_is_inspected(tmp_path: Path) -> None:
    with Daemon.start(tmp_path / "d") as daemon:
        (tmp_path / "a.csv").write_text("v\n1\n")
        run_command("write", "n", "t", "a.csv", cwd=tmp_path, endpoint=daemon.flight)
        refused = run_command("wal", "repair", "d", cwd=tmp_path)
        assert refused.returncode == 1
        assert b"locked" in refused.stderr
        daemon.kill()
    segments = json.loads(run_command("wal", "inspect", "d", "--json", cwd=tmp_path).stdout)
    assert [segment["operations"] for segment in segments] == [1]
    assert run_command("wal", "inspect", "d/wal", cwd=tmp_path).returncode == 0
    assert run_command("wal", "verify", "d", cwd=tmp_path).returncode == 0
    repaired = run_command("wal", "repair", "d", cwd=tmp_path)
    assert (repaired.returncode, repaired.stdout[:17]) == (0, b"nothing to repair")


def test_help_imports_neither_pyarrow_nor_trio(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from ingester.cli import run\n"
        "try: run(['--help'])\n"
        "except SystemExit: pass\n"
        "sys.exit(bool({'pyarrow', 'trio', 'fsspec'} & set(sys.modules)))\n"
    )
    import subprocess

    from tests.cli.conftest import ROOT

    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("first", "then"), [(10, 100), (100, 10)])
def test_a_grown_file_is_resent_exactly_in_other_batches(
    run: Run, namespace: str, tmp_path: Path, first: int, then: int
) -> None:
    origin = ["--origin", namespace, "--first-sequence", "1"]
    for rows, batch_rows, known in ((50, first, 0), (1000, then, 50), (1000, 333, 1000)):
        write_file("csv", tmp_path / "a.csv", pa.table({"v": range(rows), "tags": range(rows)}))
        done = run("write", namespace, "t", "a.csv", *origin, "--batch-rows", batch_rows, "--json")
        facts = json.loads(done.stdout)
        assert (facts["rows"], facts["known_rows"]) == (rows, known)
    (tmp_path / "b.csv").write_text("v\n1000\n1001\n")
    done = run("write", namespace, "t", "a.csv", "b.csv", *origin)
    assert (
        b"acknowledged 1,002 rows in 2 operations, 1,000 of these rows already known" in done.stdout
    )
    found = [
        json.loads(line)["v"] for line in run("query", namespace, "t", "--json").stdout.splitlines()
    ]
    assert sorted(found) == list(range(1002))


def test_an_incomplete_last_line_of_a_growing_file_is_skipped_until_complete(
    run: Run, namespace: str, tmp_path: Path
) -> None:
    """Half a line once counted as a row; the daemon then ignored the whole row as a duplicate."""
    origin = ["--origin", namespace, "--first-sequence", "1"]
    grown = tmp_path / "grown.csv"
    grown.write_text("id,v\n1,100\n2,200\n3,30")
    first = run("write", namespace, "t", "grown.csv", *origin, "--json")
    assert (first.returncode, json.loads(first.stdout)["rows"]) == (0, 2)
    assert b"grown.csv: the last line has no line end and is left out" in first.stderr
    with grown.open("a") as file:
        file.write("0\n4,400\n")
    then = run("write", namespace, "t", "grown.csv", *origin)
    assert (then.returncode, then.stderr) == (0, b"")
    found = run("query", namespace, "t", "--format", "csv").stdout.split()
    assert sorted(found[1:]) == [b"1,100", b"2,200", b"3,300", b"4,400"]


def test_only_the_last_of_several_files_may_end_in_an_incomplete_line(
    run: Run, namespace: str, tmp_path: Path
) -> None:
    """A row completed later would get the number of the next file's first row, a duplicate."""
    write = ["write", namespace, "t", "a.csv", "b.csv", "--origin", namespace]
    (tmp_path / "a.csv").write_text("v\n1\n2\n3")
    (tmp_path / "b.csv").write_text("v\n10\n11\n1")
    refused = run(*write, "--first-sequence", "1")
    assert refused.returncode == 1
    assert b"a.csv: the last line has no line end. Row numbers continue from" in refused.stderr
    for text in ("v\n10\n11\n1", "v\n10\n11\n12\n"):
        (tmp_path / "a.csv").write_text("v\n1\n2\n3\n")
        (tmp_path / "b.csv").write_text(text)
        assert run(*write, "--first-sequence", "1").returncode == 0
    found = run("query", namespace, "t", "--format", "csv").stdout.split()
    assert sorted(map(int, found[1:])) == [1, 2, 3, 10, 11, 12]


def test_without_an_origin_the_last_line_needs_no_newline(
    run: Run, namespace: str, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text("v\n1\n2")
    done = run("write", namespace, "t", "a.csv", "--json")
    assert json.loads(done.stdout)["rows"] == 2


def test_an_interrupted_write_says_how_to_resume(run: Run, namespace: str, tmp_path: Path) -> None:
    rows = 600_000  # more than the first block, which decides the types of a pipe
    text = "v,w\n" + "1,123456\n" * rows
    pipe = ["write", namespace, "t", "-", "--input-format", "csv"]
    broken = run(*pipe, stdin=f"{text}1.5,2\n1,2\n".encode())
    assert broken.returncode == 1
    said = broken.stderr.decode().splitlines()
    assert len(said) == 2
    assert f"row {rows + 1:,}, column 'v': '1.5' is not int64" in said[1]
    acknowledged = json.loads(run("tables", "--json").stdout)
    there = next(one for one in acknowledged if one["namespace"] == namespace)["buffered"]["rows"]
    go_on = (
        f"continue from row {there + 1:,} with: ingester write {namespace} t - --skip-rows {there}"
    )
    assert said[0].startswith(f"ingester: {there:,} rows of standard input are in; {go_on}")
    assert 0 < there <= rows
    mended = run(*pipe, "--skip-rows", there, stdin=f"{text}2,2\n1,2\n".encode())
    assert mended.returncode == 0, mended.stderr
    found = run("query", namespace, "t", "--format", "csv", "--columns", "v").stdout
    assert found.count(b"\n") == rows + 3


def test_a_file_with_an_invalid_row_is_refused_before_its_first_row(
    run: Run, namespace: str, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text("v\n1\n")
    assert run("write", namespace, "t", "a.csv").returncode == 0
    (tmp_path / "b.csv").write_text("v\n" + "1234567890\n" * 500_000 + "x\n")
    failed = run("write", namespace, "t", "b.csv")
    check_refused(failed, 1, "b.csv: row 500,001, column 'v': 'x' is not int64")
    assert run("query", namespace, "t", "--format", "csv").stdout == b'"v"\n1\n'


def test_a_table_is_created_before_its_first_row(run: Run, namespace: str, tmp_path: Path) -> None:
    made = run(
        "create", namespace, "t", "zip:string", "price:decimal(20,4)", "time:timestamp", "n:int32",
        "tags:list<string>", "--primary-key", "zip,time", "--sort-by", "n", "--json",
        "--partition-by", "day(time), bucket(4, zip)",
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    facts = json.loads(made.stdout)
    assert [(column["name"], column["type"]) for column in facts["schema"]] == [
        ("zip", "string"),
        ("price", "decimal128(20, 4)"),
        ("time", "timestamp[us, tz=UTC]"),
        ("n", "int32"),
        ("tags", "list<item: string>"),
    ]
    assert (facts["primary_key"], facts["sort_by"]) == (["zip", "time"], ["n"])
    assert facts["partition_by"] == ["day(time)", "bucket(4, zip)"]
    (tmp_path / "a.csv").write_text("zip,price,time,n\n501,1.5,2026-11-21T10:00:00Z,7\n")
    assert run("write", namespace, "t", "a.csv").returncode == 0
    row = json.loads(run("query", namespace, "t", "--json").stdout)
    assert (row["zip"], row["price"], row["n"]) == ("501", "1.5000", 7)


def test_a_table_is_created_published_and_with_its_own_age(run: Run, namespace: str) -> None:
    made = run("create", namespace, "t", "n:int32", "--publish", "delta", "--max-age", "1m30s")
    assert b"flushed after 90s, or persist.max_age if that is shorter" in made.stdout, made
    assert b"published in delta" in made.stdout
    (found,) = [
        each
        for each in json.loads(run("tables", "--json").stdout)
        if each["namespace"] == namespace
    ]
    assert (found["publish"], found["max_age_s"]) == (["delta"], 90.0)
    assert [each["format"] for each in found["published"]] == ["delta"]
    for command in ("tables", "status"):
        printed = run(command).stdout
        assert b"published" in printed
        assert b"delta" in printed


def test_a_table_is_created_like_a_file(run: Run, namespace: str, tmp_path: Path) -> None:
    write_file("parquet", tmp_path / "a.parquet")
    like = run("create", namespace, "t", "--like", "a.parquet", "v:int32", "more:date", "--json")
    assert like.returncode == 0, like.stderr
    types = {column["name"]: column["type"] for column in json.loads(like.stdout)["schema"]}
    assert (types["v"], types["more"], types["at"]) == ("int32", "date32[day]", "timestamp[us]")
    again = run("create", namespace, "t", "--like", "a.parquet", "v:int32", "more:date")
    assert b"partitioned by nothing" in again.stdout
    other = run("create", namespace, "t", "--like", "a.parquet")
    check_refused(other, 1, "exists")
    (tmp_path / "a.csv").write_text("zip;empty\n007;\n")
    check_refused(run("create", namespace, "u", "--like", "a.csv"), 1, "add empty:TYPE")
    csv = run("create", namespace, "u", "--like", "a.csv", "empty:double", "--json")
    assert [one["type"] for one in json.loads(csv.stdout)["schema"]] == ["string", "double"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give columns as name:type, or --like FILE"),
        (["v"], "column 'v' is not name:type"),
        (["v:integer"], "type 'integer' is unknown; known are bool, int8 to int64"),
        (["v:list<what>"], "type 'what' is unknown"),
        (["v:decimal(50)"], "the precision must be 1 to 38"),
        (["v:int64", "v:string"], "'v' is given twice"),
        (["v:int64", "--timestamp-unit", "ms"], "'ms' is not us or ns"),
        (["v:int64", "--max-age", "soon"], "--max-age: not a duration: 'soon'"),
    ],
)
def test_an_invalid_table_definition_is_a_usage_error(
    run: Run, arguments: list[str], message: str
) -> None:
    check_refused(run("create", "n", "made", *arguments), 2, message)
