"""A source's state becomes durable atomically with the rows that it belongs to."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.flight as fl
import pytest

from persist.manifest import CheckpointAction, Manifest, Proposal, WriterIdentity, commit
from persist.store import open_store
from persist.switching import roll_back, switch_version
from tests.drivers.daemon import Daemon
from tests.drivers.pushing import push_some
from tests.drivers.waiting import until
from tests.drivers.wire import Stream, act, create, delete, numbers, put, writing
from tests.fencing.pairs import adopt, adopted_rows, pause, start, store_url
from tests.origins.checkpoints import (
    asked,
    checkpoint,
    delete_state,
    get,
    listed,
    put_state,
    send_with_states,
    state_of,
    text,
)
from tests.origins.senders import (
    ORIGIN,
    TABLE,
    batch,
    in_files,
    known,
    padded,
    persisted,
    rows_of,
    seen,
    send,
)


def test_a_state_is_in_the_log_with_its_batch_and_in_a_version_with_the_files(
    tmp_path: Path,
) -> None:
    with Daemon.start(tmp_path / "d") as daemon:
        send_with_states(daemon, [1, 2])
        assert get(daemon) == (state_of(2), None)
        daemon.kill()
        with daemon.again() as daemon:
            assert get(daemon) == (state_of(2), None)
            persisted(daemon)
            assert get(daemon) == (state_of(2), state_of(2))
            send_with_states(daemon, [3])
            assert get(daemon) == (state_of(3), state_of(2))
            assert listed(daemon)["topic-0"]["durable"] is False
            assert daemon.terminate() == 0
        with daemon.again() as daemon:
            assert get(daemon) == (state_of(3), state_of(3))
            assert listed(daemon)["topic-0"] | {"at": None} == {
                "namespace": TABLE[0],
                "table": TABLE[1],
                "table_version": 1,
                "partition": "topic-0",
                "bytes": len(state_of(3)),
                "shared_id": None,
                "shared_bytes": 0,
                "at": None,
                "durable": True,
                "origin": ORIGIN,
            }


def test_a_refused_batch_leaves_the_state_that_was(tmp_path: Path) -> None:
    with Daemon.start(tmp_path / "d") as daemon, fl.connect(daemon.flight) as client:
        send_with_states(daemon, [1])
        wrong = pa.record_batch({"time": pa.array(["no time"])})
        given = {"sequence": 2, "checkpoint": checkpoint(b"after a refusal")}
        with pytest.raises(pa.ArrowInvalid, match="time"):
            put(client, TABLE, wrong, origin=ORIGIN, metadata=[given])
        assert get(daemon) == (state_of(1), None)
        # A duplicate changes nothing either: its rows and its state are already known.
        repeated = {"sequence": 1, "checkpoint": checkpoint(b"another")}
        (answer,) = put(client, TABLE, batch(1), origin=ORIGIN, metadata=[repeated])
        assert answer["duplicate"]
        assert get(daemon) == (state_of(1), None)


def test_a_state_waits_for_the_last_of_its_rows(tmp_path: Path) -> None:
    """Day 0 is flushed because of its size; the state came with rows of day 1 as well."""
    settings = {"persist__max_partition_bytes": "32KiB"}
    with start(tmp_path, "d", **settings) as daemon, fl.connect(daemon.flight) as client:
        send_with_states(daemon, [1])
        persisted(daemon)
        given = {"sequence": 2, "checkpoint": checkpoint(state_of(2))}
        put(client, TABLE, padded(2, large=0, small=1), origin=ORIGIN, metadata=[given])
        until(lambda: len(in_files(tmp_path)) == 19, "day 0 in files")
        assert get(daemon) == (state_of(2), state_of(1))
        daemon.kill()
        shutil.rmtree(daemon.data_dir)
        with daemon.again() as daemon:
            # The lost disk takes with it the state whose rows were in no file.
            assert get(daemon) == (state_of(1), state_of(1))
            with fl.connect(daemon.flight) as again:
                again_2 = padded(2, large=0, small=1)
                put(again, TABLE, again_2, origin=ORIGIN, metadata=[given])
            send_with_states(daemon, [3])
            assert sorted(seen(daemon)) == rows_of([1, 2, 3])
            persisted(daemon)
            assert get(daemon) == (state_of(3), state_of(3))
            assert in_files(tmp_path) == rows_of([1, 2, 3])


def test_a_state_without_a_sequence_waits_for_all_rows_before_it(tmp_path: Path) -> None:
    settings = {"persist__max_partition_bytes": "32KiB"}
    with start(tmp_path, "d", **settings) as daemon, fl.connect(daemon.flight) as client:
        put(client, TABLE, batch(1, days=1))
        put_state(daemon, b"one")
        assert get(daemon) == (b"one", None)
        put(client, TABLE, padded(2, large=1, small=2), metadata=[{"checkpoint": checkpoint(b"2")}])
        until(lambda: len(in_files(tmp_path)) == 9, "day 1 in files")
        assert get(daemon) == (b"2", None)
        persisted(daemon)
        assert get(daemon) == (b"2", b"2")


def test_what_is_put_is_in_the_log_at_once_and_in_a_version_after_max_age(tmp_path: Path) -> None:
    with start(tmp_path, "d", persist__max_age="500ms") as daemon:
        with fl.connect(daemon.flight) as client:
            create(client, TABLE, batch(1).schema)
        answer = put_state(daemon, b"offset 7")
        assert (answer["state"], answer["durable"]) == (text(b"offset 7"), False)
        until(lambda: get(daemon) == (b"offset 7", b"offset 7"), "the state in a version")
        delete_state(daemon)
        assert get(daemon)[0] is None
        until(lambda: get(daemon) == (None, None), "the end of the state in a version")
        assert listed(daemon) == {}


def test_a_put_without_rows_survives_kills_and_goes_with_persist(tmp_path: Path) -> None:
    with start(tmp_path, "d") as daemon:
        with fl.connect(daemon.flight) as client:
            create(client, TABLE, batch(1).schema)
        put_state(daemon, b"1")
        put_state(daemon, b"", "empty")
        put_state(daemon, b"gone", "gone")
        delete_state(daemon, "gone")
        daemon.kill()
        with daemon.again() as daemon:
            assert get(daemon) == (b"1", None)
            assert get(daemon, "empty") == (b"", None)
            assert get(daemon, "gone") == (None, None)
            persisted(daemon)
            daemon.kill()
            shutil.rmtree(daemon.data_dir)
        with daemon.again() as daemon:
            assert get(daemon) == (b"1", b"1")
            assert get(daemon, "empty") == (b"", b"")
            assert sorted(listed(daemon)) == ["empty", "topic-0"]


def test_states_of_other_tables_and_partitions_are_apart(tmp_path: Path) -> None:
    with start(tmp_path, "d") as daemon, fl.connect(daemon.flight) as client:
        for table in (("ns", "t"), ("ns", "t2"), ("ns2", "t")):
            create(client, table, batch(1).schema)
            for partition in ("a", "b", "a/b", "ä b"):
                state = text(repr((table, partition)).encode())
                body = {"namespace": table[0], "table": table[1], "partition": partition}
                act(client, "checkpoint_put", state=state, **body)
        for table in (("ns", "t"), ("ns", "t2"), ("ns2", "t")):
            for partition in ("a", "b", "a/b", "ä b"):
                body = {"namespace": table[0], "table": table[1], "partition": partition}
                (found,) = act(client, "checkpoint_get", **body)
                assert found["state"] == text(repr((table, partition)).encode())
        assert len(act(client, "checkpoints")) == 12
        assert len(act(client, "checkpoints", namespace="ns")) == 8


def test_after_a_take_over_the_state_is_that_of_the_rows_that_are_there(tmp_path: Path) -> None:
    with two(tmp_path) as (a, b):
        send_with_states(a, [1])
        persisted(a)
        send_with_states(a, [2, 3])
        assert get(b) == (state_of(1), state_of(1))
        # The client resumes at b from the state that b reports.
        send_with_states(b, [2])
        assert get(b) == (state_of(2), state_of(1))
        # b owns the rows that were in a's log: neither the rows nor their state are added again.
        persisted(a)
        assert get(a) == (state_of(1), state_of(1))
        persisted(b)
        assert get(a) == get(b) == (state_of(2), state_of(2))
        assert in_files(tmp_path) == rows_of([1, 2])


def test_an_older_state_of_another_daemon_does_not_come_back(tmp_path: Path) -> None:
    with two(tmp_path) as (a, b):
        send_with_states(a, [1, 2])
        send_with_states(b, [3])
        persisted(b)
        persisted(a)  # commits 1 and 2, which a still owns
        assert get(a) == get(b) == (state_of(3), state_of(3))
        assert in_files(tmp_path) == rows_of([1, 2, 3])
        put_state(a, b"by hand")
        delete_state(b)
        persisted(b)
        assert get(b) == (None, None)


def test_states_go_with_the_table_to_another_version_and_back(tmp_path: Path) -> None:
    with start(tmp_path, "d", manifest__refresh="10ms") as daemon:
        for number in range(1, 6):
            send_with_states(daemon, [number])
            put_state(daemon, b"%d" % number, "beside")
            persisted(daemon)
        put_state(daemon, b"gone", "gone")
        delete_state(daemon, "gone")
        send_with_states(daemon, [6])
        store = open_store(store_url(tmp_path))
        version = push_some(store, TABLE)
        switch_version(store, *TABLE, version)
        found = asked(daemon, "checkpoint_get", partition="topic-0")
        assert (found["table_version"], found["state"]) == (2, text(state_of(6)))
        assert get(daemon, "beside") == (b"5", b"5")
        assert get(daemon, "gone")[0] is None
        send_with_states(daemon, [7])
        persisted(daemon)
        assert get(daemon) == (state_of(7), state_of(7))
        assert {each["table_version"] for each in listed(daemon).values()} == {2}
        roll_back(store, *TABLE, version=version)
        assert get(daemon) == (state_of(7), state_of(7))
        put_state(daemon, b"6", "beside")
        persisted(daemon)
        assert get(daemon, "beside") == (b"6", b"6")
        assert asked(daemon, "checkpoint_get", partition="beside")["table_version"] == 1
        assert sorted(seen(daemon)) == rows_of(range(1, 8))


def test_a_state_counts_over_one_of_a_daemon_whose_clock_is_ahead(tmp_path: Path) -> None:
    with start(tmp_path, "d", manifest__refresh="10ms") as daemon:
        send(daemon, [1])
        manifest = Manifest(open_store(store_url(tmp_path)), *TABLE)
        other = WriterIdentity("other", "run", 1)
        ahead = CheckpointAction("topic-0", text(b"ahead"), at="2199-01-01T00:00:00+00:00")
        ahead = msgspec.structs.replace(ahead, ingester_id="other", epoch=1, seq=1)
        commit(manifest, manifest.load(), Proposal([ahead]), other)
        assert get(daemon) == (b"ahead", b"ahead")
        put_state(daemon, b"put")
        assert get(daemon) == (b"put", b"ahead")
        persisted(daemon)
        assert get(daemon) == (b"put", b"put")


def test_an_adopted_log_brings_its_states(tmp_path: Path) -> None:
    with start(tmp_path, "d") as first:
        send_with_states(first, [1])
        persisted(first)
        send_with_states(first, [2, 3])
        put_state(first, b"beside", "other")
        put_state(first, b"bulk", "bulky", shared=text(b"dictionary"))
        first.kill()
        assert adopt(tmp_path, "d")[TABLE]["checkpoints"] == 3
        assert adopted_rows(tmp_path, "d") == 0
        shutil.rmtree(first.data_dir)
        with first.again() as again:
            assert get(again) == (state_of(3), state_of(3))
            assert get(again, "other") == (b"beside", b"beside")
            found = asked(again, "checkpoint_get", partition="bulky")
            assert found["durable_shared"] == text(b"dictionary")
            assert (known(again) or {})["durable_sequence"] == 3
            assert seen(again) == rows_of([1, 2, 3])


def test_an_adopted_log_does_not_bring_back_what_its_successor_has_replaced(tmp_path: Path) -> None:
    with start(tmp_path, "first") as first:
        send_with_states(first, [1, 2])
        put_state(first, b"old", "other")
        pause(first)
        with start(tmp_path, "second", manifest__refresh="10ms") as second:
            send_with_states(second, [2, 3])
            persisted(second)
            put_state(second, b"new", "other")
            delete_state(second, "other")
            persisted(second)
            first.kill()
            adopt(tmp_path, "first")
            assert get(second) == (state_of(3), state_of(3))
            assert get(second, "other") == (None, None)


def test_bytes_that_partitions_share_are_kept_once_and_go_with_the_last(tmp_path: Path) -> None:
    bulk = random.Random(1).randbytes(1 << 20)
    with start(tmp_path, "d") as daemon, fl.connect(daemon.flight) as client:
        with Stream(client, writing(TABLE, ORIGIN), batch(1).schema) as stream:
            shared_id = None
            for number in range(1, 9):
                which = {"shared_id": shared_id} if shared_id else {"shared": text(bulk)}
                given = checkpoint(state_of(number), f"p{number}", **which)
                stream.write(batch(number), {"sequence": number, "checkpoint": given})
                shared_id = listed(daemon)["p1"]["shared_id"]
        log = b"".join(each.read_bytes() for each in daemon.data_dir.glob("wal/*.wal"))
        assert log.count(bulk) == 1
        daemon.kill()
        with daemon.again() as daemon:
            assert asked(daemon, "checkpoint_get", partition="p8")["shared"] == text(bulk)
            persisted(daemon)
            found = asked(daemon, "checkpoint_get", partition="p3")
            assert (found["durable"], found["durable_shared"]) == (True, text(bulk))
            changelogs = list(tmp_path.rglob("*.changelog"))
            assert sum(each.read_bytes().count(b"shared_state") for each in changelogs) == 1
            # Later references need only the id, as long as one reference to it remains.
            put_state(daemon, b"late", "late", shared_id=shared_id)
            for number in range(1, 9):
                delete_state(daemon, f"p{number}")
            persisted(daemon)
            assert asked(daemon, "checkpoint_get", partition="late")["shared"] == text(bulk)
            delete_state(daemon, "late")
            persisted(daemon)
            with pytest.raises(pa.ArrowInvalid, match="is not known here; send its bytes"):
                put_state(daemon, b"later", "late", shared_id=shared_id)


def test_deletes_in_a_keyed_table_carry_states_too(tmp_path: Path) -> None:
    with start(tmp_path, "d") as daemon, fl.connect(daemon.flight) as client:
        rows = numbers(0, 10)
        create(client, TABLE, rows.schema, primary_key=["i"])
        put(client, TABLE, rows, metadata=[{"checkpoint": checkpoint(b"1")}])
        delete(client, TABLE, rows.select(["i"]), metadata={"checkpoint": checkpoint(b"2")})
        assert get(daemon) == (b"2", None)
        persisted(daemon)
        assert get(daemon) == (b"2", b"2")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"partition": "", "state": ""}, "1 to 256 bytes"),
        ({"partition": "x" * 257, "state": ""}, "1 to 256 bytes, this one 257"),
        ({"partition": "a\x1b[2J", "state": ""}, "control characters"),
        ({"partition": "p", "state": "no base64!"}, "is not base64"),
        ({"partition": "p", "state": text(bytes((1 << 20) + 1))}, "has 1048577 B; at most 1048576"),
        ({"partition": "p", "state": "", "shared": "?"}, "shared state is not base64"),
        ({"partition": "p", "state": "", "shared": "", "shared_id": "x"}, "exclude each other"),
        ({"partition": "p", "state": "", "shared_id": "x"}, "shared state 'x' is not known"),
        ({"partition": "p", "state": "", "offset": 7}, "unknown field `offset`"),
    ],
)
def test_a_checkpoint_that_cannot_be_kept_is_refused_by_name(
    daemon_of_module: Daemon, wrong: dict[str, object], says: str
) -> None:
    with fl.connect(daemon_of_module.flight) as client:
        with pytest.raises(pa.ArrowInvalid, match=says):
            act(client, "checkpoint_put", namespace=TABLE[0], table=TABLE[1], **wrong)
        with pytest.raises(pa.ArrowInvalid, match=says):
            put(client, TABLE, batch(2), metadata=[{"checkpoint": wrong}])
    assert seen(daemon_of_module) == rows_of([1])
    assert listed(daemon_of_module) == {}


@contextmanager
def two(folder: Path) -> Iterator[tuple[Daemon, Daemon]]:
    """Two daemons on one store."""
    quick = {"manifest__refresh": "10ms"}
    with start(folder, "a", id="a", **quick) as a, start(folder, "b", id="b", **quick) as b:
        yield a, b


@pytest.fixture(scope="module")
def daemon_of_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with start(tmp_path_factory.mktemp("d"), "d") as daemon:
        send(daemon, [1])
        yield daemon
