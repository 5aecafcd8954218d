"""``ingester manifest`` on the store of a real daemon, intact and damaged."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ingester.client import Checkpoint, Client
from persist.store import open_store
from persist.switching import switch_version
from tests.cli.conftest import check_refused, run_command
from tests.drivers.daemon import Daemon
from tests.drivers.pushing import push_some


class Lake:
    """The store of a stopped daemon, and the command on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = folder / "data" / "store"

    def run(self, command: str, *arguments: object, code: int = 0) -> Any:
        """Return the command's JSON output, or ``None`` if it has none."""
        done = run_command("manifest", command, self.store, *arguments, "--json", cwd=self.folder)
        assert done.returncode == code, done.stderr
        assert b"Traceback" not in done.stderr
        return json.loads(done.stdout) if done.stdout else None

    def said(self, command: str, *arguments: object) -> str:
        """Return its output for people."""
        done = run_command("manifest", command, self.store, *arguments, cwd=self.folder)
        assert done.returncode == 0, done.stderr
        return done.stdout.decode()

    def files(self, kind: str, table: str = "t") -> list[Path]:
        """Return the table's files with this suffix, sorted."""
        return sorted((self.store / "n" / table).rglob(f"*{kind}"))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store of two tables: ``n/t`` with 3 files, ``n/u`` with one."""
    folder = tmp_path_factory.mktemp("lake")
    with Daemon.start(folder / "data") as daemon:
        for step in range(3):
            (folder / "a.csv").write_text(f"v\n{step}\n{step + 10}\n")
            for table in ("t", "u")[: 1 if step else 2]:
                for command in (["write", "n", table, "a.csv"], ["persist", "n", table]):
                    done = run_command(*command, cwd=folder, endpoint=daemon.flight)
                    assert done.returncode == 0, done.stderr
        assert daemon.terminate() == 0
    return folder


@pytest.fixture
def lake(made: Path, tmp_path: Path) -> Lake:
    """A copy that the test may damage."""
    import shutil

    shutil.copytree(made, tmp_path / "copy")
    return Lake(tmp_path / "copy")


def test_log_lists_every_version_newest_first(lake: Lake) -> None:
    (table,) = lake.run("log", "n", "t")
    versions = table["versions"]
    assert (table["namespace"], table["table"]) == ("n", "t")
    numbers = [one["version"] for one in versions]
    assert numbers == list(range(len(numbers), 0, -1))
    persists = [one for one in versions if "add" in one["actions"]]
    assert [one["rows_added"] for one in persists] == [2, 2, 2]
    assert [one["rows"] for one in persists] == [6, 4, 2]
    assert [one["rows_removed"] for one in versions] == [0] * len(versions)
    assert versions[0]["parent"] == versions[1]["uid"]
    assert versions[0]["writer"]["ingester_id"] == "tested"
    assert all(one["at"] for one in versions)
    (newest,) = lake.run("log", "n", "t", "--limit", 2)
    assert newest["versions"] == versions[:2]
    assert "1 add, 1 applied" in lake.said("log", "n", "t")


def test_without_a_table_log_lists_all_tables(lake: Lake) -> None:
    for arguments in ([], ["n"]):
        found = lake.run("show", *arguments)
        assert [(one["table"], one["rows"]) for one in found] == [("t", 6), ("u", 2)]


def test_show_lists_the_contents_of_a_version(lake: Lake) -> None:
    (newest,) = lake.run("show", "n", "t")
    assert (newest["files"], newest["rows"]) == (3, 6)
    assert newest["bytes"] == sum(path.stat().st_size for path in lake.files(".parquet"))
    assert newest["columns"] == [{"name": "v", "type": "int64"}]
    assert newest["partitions"] == [
        {"partition": "", "spec_id": 1, "files": 3, "rows": 6, "bytes": newest["bytes"]}
    ]
    (applied,) = newest["applied"]
    assert (applied["ingester_id"], applied["epoch"]) == ("tested", 1)
    (writer,) = newest["writers"]
    assert (writer["ingester_id"], writer["state"]) == ("tested", "closed")
    (first,) = lake.run("show", "n", "t", "--version", 1)
    assert (first["version"], first["rows"], first["applied"]) == (1, 0, [])
    assert "int64" in lake.said("show", "n", "t")


def test_show_lists_the_source_states_of_a_version(tmp_path: Path) -> None:
    """Without a daemon no other command shows the states, or missing shared bytes."""
    lake = Lake(tmp_path)
    schema = pa.schema([("v", pa.int64())])
    shared = hashlib.sha256(b"dictionary").hexdigest()
    with Daemon.start(tmp_path / "data") as daemon, Client(daemon.flight) as client:
        client.create_table("n", "t", schema)
        with client.writer("n", "t", schema, origin="o", first_sequence=7) as writer:
            writer.write({"v": [1]}, Checkpoint("b", b"state", b"dictionary"))
        client.put_checkpoint("n", "t", "a", b"")
        client.persist("n", "t")
        (one,) = lake.run("show", "n", "t")
        facts = ("partition", "bytes", "shared", "origin", "sequence")
        assert [tuple(state[name] for name in facts) for state in one["checkpoints"]] == [
            ("a", 0, None, None, None),
            ("b", 5, shared, "o", 7),
        ]
        assert all(state["at"] for state in one["checkpoints"])
        assert one["shared"] == [{"shared": shared, "bytes": 10}]
        said = lake.said("show", "n", "t")
        assert "checkpoints\npartition  bytes" in said
        assert "None" not in said
        client.delete_checkpoint("n", "t", "b")
        client.persist("n", "t")
        (one,) = lake.run("show", "n", "t")
        assert [state["partition"] for state in one["checkpoints"]] == ["a"]
        assert one["shared"] == []


def test_verify_accepts_an_intact_table(lake: Lake) -> None:
    for arguments in ([], ["--data"]):
        (table,) = lake.run("verify", "n", "t", *arguments)
        assert (table["findings"], table["oldest"], table["data_files"]) == ([], 1, 3)
        assert table["rows_counted"] == bool(arguments)
        assert table["stray_data"] == {"files": 0, "bytes": 0}
    assert "n/u: intact" in lake.said("verify")


@pytest.mark.parametrize("damage", ["missing", "cut", "rotten", "changelog"])
def test_verify_names_the_damage_and_exits_with_1(lake: Lake, damage: str) -> None:
    victim = lake.files(".changelog" if damage == "changelog" else ".parquet")[1]
    if damage == "missing":
        victim.unlink()
    elif damage == "cut":
        os.truncate(victim, 10)
    elif damage == "rotten":
        victim.write_bytes(b"\0" * victim.stat().st_size)
    else:
        victim.write_bytes(b"{}")
    if damage == "rotten":
        assert lake.run("verify", "n", "t")[0]["findings"] == []
    (table, other) = lake.run("verify", "n", "--data", code=1)
    found = [one for one in table["findings"] if one["severity"] == "damage"]
    assert any(one["path"].endswith(victim.name) for one in found)
    assert other["findings"] == []


def test_verify_reports_a_damaged_snapshot_that_can_be_bypassed(lake: Lake) -> None:
    newest = lake.files(".changelog")[-1]
    newest.with_suffix(".snapshot").write_bytes(b"broken")
    (table,) = lake.run("verify", "n", "t")
    (finding,) = table["findings"]
    assert finding["severity"] == "weakness"
    assert finding["path"].endswith(newest.with_suffix(".snapshot").name)


@pytest.mark.parametrize("data", [b"broken", b"INGSNAP9 of a later release, or another program"])
def test_show_names_a_damaged_snapshot(lake: Lake, data: bytes) -> None:
    shown = lake.run("show", "n", "t")
    snapshot = lake.files(".changelog")[-1].with_suffix(".snapshot")
    snapshot.write_bytes(data)
    done = run_command("manifest", "show", lake.store, "n", "t", cwd=lake.folder)
    assert done.returncode == 0
    assert f"{snapshot.name} is damaged and was not used".encode() in done.stderr
    assert b"`ingester manifest verify`" in done.stderr
    assert lake.run("show", "n", "t") == shown


def test_strays_are_listed_and_gc_deletes_them(lake: Lake) -> None:
    stray = lake.files(".parquet")[0].with_name("stray.parquet")
    stray.write_bytes(b"12345")
    lost = lake.files(".changelog")[0]
    lost = lost.with_name(lost.name[:20] + "_lost.changelog")
    lost.write_bytes(b"{}")
    for path in (stray, lost):
        os.utime(path, (0, 0))
    (table,) = lake.run("verify", "n", "t")
    assert table["stray_data"] == {"files": 1, "bytes": 5}
    assert table["stray_changelogs"]["files"] == 1
    assert "1 data files (5 B)" in lake.said("verify", "n", "t")
    (planned,) = lake.run("gc", "n", "t", "--dry-run")
    assert planned["dry_run"]
    assert stray.exists()
    (done,) = lake.run("gc", "n", "t")
    assert done["data"] == planned["data"] == {"files": 1, "bytes": 5}
    assert done["changelogs"]["files"] == 1
    assert not stray.exists()
    assert not lost.exists()
    assert lake.run("verify", "n", "t", "--data")[0]["findings"] == []
    assert "deleted nothing" in lake.said("gc", "n", "t")
    assert "horizon" in lake.said("log", "n", "t")


def test_gc_reads_its_settings_from_flags_environment_and_file(lake: Lake) -> None:
    stray = lake.files(".parquet")[0].with_name("stray.parquet")
    stray.write_bytes(b"12345")

    def planned(*arguments: str, **variables: Any) -> int:
        done = run_command(
            "manifest", "gc", lake.store, "n", "t", "--dry-run", "--json", *arguments,
            cwd=lake.folder, **variables,
        )  # fmt: skip
        return int(json.loads(done.stdout)[0]["data"]["files"])

    (lake.folder / "c.toml").write_text('[manifest]\norphan_grace = "0s"\n')
    assert planned() == 0
    assert planned("--orphan-grace", "0s") == 1
    assert planned("--config", "c.toml") == 1
    assert planned(INGESTER_MANIFEST__ORPHAN_GRACE="0s") == 1
    assert planned("--config", "c.toml", "--orphan-grace", "1h") == 0


def test_a_relative_folder_and_a_url_are_the_same_store(lake: Lake) -> None:
    for url in ("data/store", f"file://{lake.store}"):
        done = run_command("manifest", "log", url, "n", "u", "--json", cwd=lake.folder)
        assert len(json.loads(done.stdout)) == 1


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["log", "data/store", "n", "none"], 1, "n/none does not exist"),
        (["log", "data/store", "none"], 1, "no table found in"),
        (["show", "nowhere"], 1, "no table found in"),
        (["show", "data/store", "n", "t", "--version", "99"], 1, "version 99 is not kept"),
        (["show", "data/store", "../x", "t"], 2, "does not match"),
        (["log", "memory://x"], 1, "memory is not durable"),
        (["log", "s3://u:p@b/x"], 2, "must not carry credentials"),
        (["gc", "data/store", "--retain", "soon"], 2, "manifest.retain"),
        (["verify", "data/store", "--config", "none.toml"], 2, "none.toml"),
        (["verify"], 2, ""),
    ],
)
def test_a_failure_is_one_line_and_its_exit_code(
    made: Path, arguments: list[str], code: int, message: str
) -> None:
    check_refused(run_command("manifest", *arguments, cwd=made), code, message)


def test_table_versions_are_listed_shown_and_cleaned(lake: Lake) -> None:
    store = open_store(f"file://{lake.store}")
    for number in range(4):
        version = push_some(store, ("n", "t"), f"push-{number}", lambda add: False)
        if number < 3:
            switch_version(store, "n", "t", version, push_id=f"push-{number}")
    (table,) = lake.run("versions", "n", "t")
    states = [(one["version"], one["state"], one["current"]) for one in table["versions"]]
    assert states == [(n, "kept", n == 4) for n in range(1, 6)]
    assert table["versions"][3]["claim"]["push_id"] == "push-2"
    assert "push-3" in lake.said("versions", "n", "t")
    (old,) = lake.run("show", "n", "t", "--table-version", 1)
    (now,) = lake.run("show", "n", "t")
    assert (old["rows"], now["rows"]) == (6, 0)
    assert lake.run("log", "n", "t", "--table-version", 5)[0]["versions"][0]["rows"] == 0
    lake.run("verify", "n", "t", "--table-version", 1)
    lake.run("show", "--table-version", 1, code=2)
    lake.run("show", "n", "t", "--table-version", 9, code=1)
    (dry,) = lake.run("gc", "n", "t", "--dry-run")
    (done,) = lake.run("gc", "n", "t")
    assert dry["table_versions"]["marked"] == done["table_versions"]["marked"] == [1]
    lake.run("show", "n", "t", "--table-version", 1, code=1)
    assert "deleted: 1," in lake.said("gc", "n", "t", "--orphan-grace", "0s")
    assert not (lake.store / "n" / "t" / "v1" / "data").exists() or not lake.files("v1/*.parquet")
    (table,) = lake.run("versions", "n", "t")
    assert [one["state"] for one in table["versions"]] == ["deleted", *["kept"] * 4]
