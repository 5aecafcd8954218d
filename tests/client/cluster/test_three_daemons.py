"""Three daemons as one: each acknowledged row is found once or reported as missing.

Tests share the daemons; a test restarts the daemons that it stopped.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from ingester.client import (
    Client,
    ClientError,
    InvalidRequest,
    Restarted,
    RetryPolicy,
    SyncColumn,
    Unavailable,
    Unreachable,
)
from ingester.client.cluster.daemons import ranked
from ingester.client.sync_stream import SyncAnswer, SyncStream
from tests.cli.conftest import check_refused, run_command
from tests.client.cluster.three import Three, three
from tests.drivers.waiting import until

SCHEMA = pa.schema({"n": pa.int64()})
KEYED = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.int64())])
PATIENT = RetryPolicy(for_s=30, first_delay_s=0.02, max_delay_s=0.3)
AT_ONCE = RetryPolicy(for_s=0.3, first_delay_s=0.02)


@pytest.fixture(scope="module")
def daemons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Three]:
    yield from three(tmp_path_factory.mktemp("three"))


@pytest.fixture
def client(daemons: Three) -> Iterator[Client]:
    with Client(daemons.endpoints, timeout_s=10, retry=PATIENT) as connected:
        yield connected


def rows(*numbers: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(numbers, pa.int64())})


def placed(daemons: Three, table: str, origin: str) -> int:
    """Return the number of the daemon that a writer prefers."""
    return daemons.number(ranked(("ns", table, origin), daemons.endpoints)[0])


def test_writers_store_each_row_once_through_kills_and_a_drain(
    daemons: Three, client: Client
) -> None:
    written, ended, errors = [0] * 6, threading.Event(), []

    def write(number: int) -> None:
        try:
            with client.writer("ns", "stormy", SCHEMA, origin=f"w{number}") as writer:
                while not ended.is_set():
                    writer.write(rows(number * 1_000_000 + written[number])).result(30)
                    written[number] += 1
        except BaseException as exc:
            errors.append(exc)

    def until_all_went_on() -> None:
        before = list(written)
        for _ in range(3000):
            if errors or all(now > then + 3 for now, then in zip(written, before, strict=True)):
                return
            ended.wait(0.01)
        raise AssertionError(f"some writer stands still: {before}, {written}")

    homes = {placed(daemons, "stormy", f"w{number}") for number in range(6)}
    assert len(homes) > 1, "the writers of this test are spread over daemons"
    threads = [threading.Thread(target=write, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    try:
        until_all_went_on()
        for number in sorted(homes)[:2]:
            daemons.daemons[number].kill()
            until_all_went_on()
            daemons.again(number)
        drained = max(homes)
        with Client(daemons.endpoints[drained]) as one:
            one.action("drain", {"wait_s": 10}, timeout_s=30)
            until_all_went_on()
            assert one.describe("ns", "stormy").buffered.rows == 0, "all went elsewhere"
            one.action("drain", {"undo": True})
        until_all_went_on()
    finally:
        ended.set()
        for thread in threads:
            thread.join(60)
    assert not errors
    found = sorted(client.query("ns", "stormy")["n"].to_pylist())
    assert found == sorted(
        number * 1_000_000 + n for number, count in enumerate(written) for n in range(count)
    )
    client.persist("ns", "stormy")
    assert sorted(client.query("ns", "stormy", scope="all")["n"].to_pylist()) == found


def test_an_answer_has_all_buffered_rows_or_names_the_missing_daemons(
    daemons: Three, client: Client, tmp_path: Path
) -> None:
    origins = {placed(daemons, "spread", f"o{n}"): f"o{n}" for n in range(40)}
    assert set(origins) == {0, 1, 2}
    for number, origin in origins.items():
        client.write("ns", "spread", rows(number, number + 10), origin=origin, first_sequence=1)
    for number, one in enumerate(client.daemons()):
        buffered = one.query("ns", "spread", scope="buffered")["n"].to_pylist()
        assert sorted(buffered) == [number, number + 10]
        one.close()
    assert client.describe("ns", "spread").buffered.rows == 6
    assert sorted(client.query("ns", "spread", filter=[("n", "<", 10)])["n"].to_pylist()) == [
        0,
        1,
        2,
    ]
    assert client.query("ns", "spread", limit=4).num_rows == 4
    with client.query_stream("ns", "spread") as stream:
        assert sum(batch.num_rows for batch, _ in stream) == 6
        assert {part.ingester_id for part in stream.snapshot.parts} == {"d0", "d1", "d2"}
        assert stream.snapshot.missing == ()
    all_of_them = ",".join(daemons.endpoints)
    twice = [*daemons.endpoints, *(e.replace("127.0.0.1", "localhost") for e in daemons.endpoints)]
    with Client(twice) as by_two_names:
        assert by_two_names.query("ns", "spread").num_rows == 6
    queried = run_command("query", "ns", "spread", "--json", cwd=tmp_path, endpoint=all_of_them)
    assert queried.stdout.count(b"\n") == 6
    tailed = ("tail", "ns", "spread", "--since", "start", "--limit", 6, "--json")
    lines = run_command(*tailed, cwd=tmp_path, endpoint=all_of_them).stdout.splitlines()
    assert sorted(json.loads(line)["n"] for line in lines) == [0, 1, 2, 10, 11, 12]
    drain = run_command("drain", cwd=tmp_path, endpoint=all_of_them)
    check_refused(drain, 2, "drain works on one daemon, but ")
    daemons.daemons[1].kill()
    try:
        gone = daemons.endpoints[1]
        ask = ("query", "ns", "spread", "--json")
        check_refused(run_command(*ask, cwd=tmp_path, endpoint=all_of_them), 3, gone)
        seen = run_command("status", cwd=tmp_path, endpoint=all_of_them)
        assert (seen.returncode, seen.stdout.count(b"accepted")) == (3, 2)
        (line,) = (each for each in seen.stdout.decode().splitlines() if each.startswith(gone))
        assert "no answer: unreachable" in line
        part = run_command(*ask, "--allow-missing", cwd=tmp_path, endpoint=all_of_them)
        assert part.stdout.count(b"\n") == 4
        assert f"rows that only these daemons hold are missing: {gone}" in part.stderr.decode()
        with Client(daemons.endpoints, timeout_s=5, retry=AT_ONCE) as hasty:
            with pytest.raises(
                Unreachable, match=f"1 of 3 daemons.*{gone}.*missing='allow' .--allow-missing"
            ) as told:
                hasty.query("ns", "spread")
            assert told.value.details["missing"] == [gone]
            without = hasty.query("ns", "spread", missing="allow")
            assert sorted(without["n"].to_pylist()) == [0, 2, 10, 12]
            assert without.schema.metadata[b"missing"] == f'["{gone}"]'.encode()
            # The client does not guess a sequence while the origin's progress is unknown.
            with pytest.raises(Unreachable, match=r"pass first_sequence \(--first-sequence\)"):
                hasty.writer("ns", "spread", SCHEMA, origin=origins[1])
            (tmp_path / "a.csv").write_text("n\n20\n21\n")
            named = ("write", "ns", "spread", "a.csv", "--origin", "by-hand", "--retry-for", "0s")
            failed = run_command(*named, cwd=tmp_path, endpoint=all_of_them)
            check_refused(failed, 3, "(--first-sequence)")
            for taken in (b"acknowledged 2 rows", b"2 of these rows already known"):
                again = (*named, "--first-sequence", 1)
                sent = run_command(*again, cwd=tmp_path, endpoint=all_of_them)
                assert (sent.returncode, taken in sent.stdout) == (0, True), sent
            with pytest.raises(InvalidRequest, match=r"ask each of client.daemons\(\)"):
                hasty.status()
            assert [repr(one) for one in hasty.daemons()] == [
                f"Client({endpoint!r})" for endpoint in daemons.endpoints
            ]
    finally:
        daemons.again(1)
    everything = [0, 1, 2, 10, 11, 12, 20, 21]
    assert sorted(client.query("ns", "spread")["n"].to_pylist()) == everything


def test_rows_of_a_just_moved_origin_are_read_once(daemons: Three, client: Client) -> None:
    before, after = (Client(each) for each in daemons.endpoints[:2])
    with before, after:
        for sequence in range(1, 7):
            before.write("ns", "moved", rows(sequence), origin="o", first_sequence=sequence)
        # Sequences 4 to 6 are taken over: a query of both daemons finds them at the second alone.
        with after.writer("ns", "moved", SCHEMA, origin="o", first_sequence=4) as writer:
            for sequence in range(4, 9):
                writer.write(rows(sequence))
            writer.flush()
            assert sorted(client.query("ns", "moved")["n"].to_pylist()) == [*range(1, 9)]
        tail = after.query("ns", "moved", scope="buffered")
        assert int(tail.schema.metadata[b"taken_version"]) > 1


def test_rows_taken_over_gradually_are_read_once(daemons: Three, client: Client) -> None:
    """The second daemon has the newest rows and takes over older ones later (a lost disk)."""
    before, after = (Client(each) for each in daemons.endpoints[:2])
    with before, after:
        for sequence in range(1, 7):
            before.write("ns", "by_and_by", rows(sequence), origin="o", first_sequence=sequence)
        after.write("ns", "by_and_by", rows(7), origin="o", first_sequence=7)
        assert sorted(client.query("ns", "by_and_by")["n"].to_pylist()) == [*range(1, 8)]
        version = client.describe("ns", "by_and_by").manifest_version or 0
        with after.writer("ns", "by_and_by", SCHEMA, origin="o", first_sequence=4) as writer:
            for sequence in range(4, 8):
                writer.write(rows(sequence))
            writer.flush()
            assert sorted(client.query("ns", "by_and_by")["n"].to_pylist()) == [*range(1, 8)]
        tail = after.query("ns", "by_and_by", scope="buffered")
        assert int(tail.schema.metadata[b"taken_version"]) > version


def test_tails_that_lack_moved_rows_say_so(daemons: Three, client: Client) -> None:
    """The new owner answers before it takes the rows, the old owner after it has lost them."""
    before, after = (Client(each) for each in daemons.endpoints[:2])
    with before, after:
        for sequence in range(1, 7):
            before.write("ns", "between", rows(sequence), origin="o", first_sequence=sequence)
        after.write("ns", "between", rows(7), origin="o", first_sequence=7)
        version = client.describe("ns", "between").manifest_version
        assert version is not None

        def tail(one: Client) -> pa.Table:
            return one.query("ns", "between", scope="buffered", version=version)

        told_first = tail(after)
        after.write("ns", "between", rows(4), origin="o", first_sequence=4)
        until(lambda: tail(before).num_rows == 3, "the one before to leave out what it lost")
        tails = [told_first, tail(before)]
        assert sorted(n for each in tails for n in each["n"].to_pylist()) == [1, 2, 3, 7]
        taken = [int(each.schema.metadata[b"taken_version"]) for each in tails]
        assert max(taken) > version, f"a query of version {version} takes both for whole: {taken}"


def test_a_keyed_table_is_written_and_read_at_its_owner(daemons: Three, client: Client) -> None:
    with Client(daemons.endpoints[2]) as owner:
        owner.create_table("ns", "keyed", KEYED, primary_key=["id"])
        owner.write("ns", "keyed", {"id": [1], "v": [1]})
        others = [f"o{n}" for n in range(40) if placed(daemons, "keyed", f"o{n}") != 2]
        client.write("ns", "keyed", {"id": [1, 2], "v": [2, 2]}, origin=others[0], first_sequence=1)
        told = client.describe("ns", "keyed").owner
        assert told is not None
        assert (told.ingester_id, told.endpoint) == ("d2", daemons.endpoints[2])
        assert client.query("ns", "keyed").sort_by("id")["v"].to_pylist() == [2, 2]
        with (
            Client(daemons.endpoints[:2]) as too_few,
            pytest.raises(Unreachable, match=r"'d2' at .* is not among the client.s daemons"),
        ):
            too_few.query("ns", "keyed")
        owner.action("drain", {"wait_s": 10}, timeout_s=30)
        client.write("ns", "keyed", {"id": [2, 3], "v": [3, 3]}, origin=others[1], first_sequence=1)
        told = client.describe("ns", "keyed").owner
        assert told is not None
        assert told.ingester_id != "d2"
        assert client.query("ns", "keyed").sort_by("id")["v"].to_pylist() == [2, 3, 3]
        owner.action("drain", {"undo": True})
    # The owner is unreachable, and only it has its unflushed rows.
    now = daemons.number(told.endpoint or "")
    daemons.daemons[now].kill()
    try:
        says = "until it has stopped or its log is adopted"
        with (
            Client(daemons.endpoints, retry=AT_ONCE) as hasty,
            pytest.raises(Unreachable, match=says),
        ):
            hasty.write("ns", "keyed", {"id": [9], "v": [9]})
    finally:
        daemons.again(now)
    client.write("ns", "keyed", {"id": [4], "v": [4]})
    assert client.query("ns", "keyed").sort_by("id")["v"].to_pylist() == [2, 3, 3, 4]


def test_a_sync_moves_to_the_owner_of_its_table(daemons: Three, client: Client) -> None:
    roles = [SyncColumn("old_pk", "id"), SyncColumn("new_pk", "id"), SyncColumn("value", "v")]
    first, second, third = ranked(("ns", "db"), daemons.endpoints)
    for table, endpoint in (("theirs", second), ("others", third)):
        with Client(endpoint) as owner:
            owner.create_table("ns", table, KEYED, primary_key=["id"])
            owner.write("ns", table, {"id": [1], "v": [1]})

    def change(stream: SyncStream, table: str, number: int) -> SyncAnswer:
        columns = [pa.array([value], pa.int64()) for value in (None, number, number)]
        changed = pa.record_batch(columns, names=list("abc"))
        return stream.send(table, roles, changed, begin=True, sequence=number)

    stream = client.sync("ns", "db")
    stream.standing()
    assert stream.process[0] == first
    with pytest.raises(Restarted, match=rf"at {second} takes the writes.*continues there"):
        change(stream, "theirs", 2)
    assert not stream.standing().memory_sequence
    assert change(stream, "theirs", 2).accepted
    again = client.sync("ns", "db")
    assert again.standing().memory_sequence == 2
    assert again.process[0] == second
    assert client.query("ns", "theirs").sort_by("id")["v"].to_pylist() == [1, 2]
    # A stream that alternates between two owners would never write a row.
    with Client(daemons.endpoints, retry=AT_ONCE) as hasty:
        stream = hasty.sync("ns", "both")
        refused = []
        for table in ("others", "theirs", "others", "theirs"):
            stream.standing()
            try:
                change(stream, table, 2)
            except Unavailable as exc:
                refused.append((type(exc), exc.code))
        assert (Unavailable, "owner") in refused


def test_a_paused_daemon_revokes_no_later_acknowledgement(daemons: Three, client: Client) -> None:
    for table in ("closed", "opened"):
        client.create_table("ns", table, SCHEMA)
    # Both tables' writers prefer the same daemon.
    origins = {
        table: next(f"o{n}" for n in range(99) if not placed(daemons, table, f"o{n}"))
        for table in ("closed", "opened")
    }
    still = daemons.daemons[0]
    with (
        Client(daemons.endpoints, timeout_s=1.5, retry=PATIENT) as hasty,
    ):
        closed, opened = (
            hasty.writer("ns", table, SCHEMA, origin=origin, first_sequence=1)
            for table, origin in origins.items()
        )
        hasty.tables()  # connects to every daemon
        os.kill(still.pid, signal.SIGSTOP)
        try:
            # The first batches wait at a daemon that stands still; later ones go to another.
            for number in range(20):
                closed.write(rows(number))
                opened.write(rows(100 + number))
            closed.close()
            opened.flush()
            without = hasty.query("ns", "closed", missing="allow")
            assert without.num_rows == 20
            assert still.flight.encode() in without.schema.metadata[b"missing"]
        finally:
            os.kill(still.pid, signal.SIGCONT)
        # The first daemon receives them now and takes the origin back from its first sequence.
        taken = (
            f'"event": "origin taken", "table": ["ns", "opened"], "origin": "{origins["opened"]}"'
        )
        until(lambda: taken in still.stderr_file.read_text(), "it takes the open one's origin")
        opened.write(rows(120))
        opened.close()
    assert sorted(client.query("ns", "closed")["n"].to_pylist()) == [*range(20)]
    assert sorted(client.query("ns", "opened")["n"].to_pylist()) == [*range(100, 121)]


def test_a_sync_or_copy_uses_a_writable_daemon_and_explains_its_loss(
    daemons: Three, client: Client
) -> None:
    key = ("ns", "copied")
    client.create_table(*key, KEYED, primary_key=["id"])
    first, *_ = ranked(key, daemons.endpoints)
    with Client([first]) as one:
        one.action("drain", {"wait_s": 10}, timeout_s=30)
        with client.copy(*key, ["id"]) as copy:
            copy.write({"id": [1], "v": [1]})
            copy.finish("source", b"")
        one.action("drain", {"undo": True})
    assert client.query(*key).num_rows == 1
    origin = "source"
    client.create_table("ns", "copied-anew", KEYED, primary_key=["id"])
    second, *_ = ranked(("ns", origin), daemons.endpoints)
    fresh = ("ns", "copied-anew")  # the other daemon's table refuses the rows before it is lost
    first, *_ = ranked(fresh, daemons.endpoints)
    lost, stream = client.copy(*fresh, ["id"]), client.sync("ns", origin)
    lost.write({"id": [2], "v": [2]})
    stream.standing()
    for gone in {first, second}:
        daemons.daemons[daemons.number(gone)].kill()
    try:
        with pytest.raises(ClientError, match=rf"only {second}.*start again with client.sync\(…\)"):
            stream.standing()
        with pytest.raises(ClientError, match=rf"only {first}.*start again with client.copy\(…\)"):
            lost.finish("source", b"")
        assert client.sync("ns", origin).standing().memory_sequence is None
    finally:
        for gone in {first, second}:
            daemons.again(daemons.number(gone))
