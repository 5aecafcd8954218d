"""The live feed during writes, flushes, stops and kills: every row arrives exactly once."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from tests.drivers.daemon import Daemon
from tests.drivers.following import Answer, Follower, Parked, live
from tests.drivers.syncing import call
from tests.drivers.waiting import until
from tests.drivers.wire import (
    Stream,
    Table,
    create,
    events,
    extra,
    http,
    numbers,
    path,
    persist,
    put,
    query,
    rows,
    ticket,
)

TABLE: Table = ("shop", "visits")


class Copy:
    """A follower's copy of a keyless table: the rows of one version, and the groups of its tail."""

    def __init__(self, client: fl.FlightClient, table: Table, **fields: Any) -> None:
        self.client, self.table, self.fields = client, table, fields
        self.stale = 0
        self.files: list[int] = []
        self.tail: list[int] = []
        self.follower = Follower(client, table, fields=fields)

    def begin(self) -> None:
        """Load the newest version and its tail."""
        while not self._is_loaded():
            pass

    def _is_loaded(self) -> bool:
        """Load the newest version; returns False if its tail is already gone."""
        described = live(self.client, self.table)
        self.files = rows(self.client, self.table, scope="version", version=described.version)
        self.tail = []
        self.follower = Follower(
            self.client, self.table, version=described.version, fields=self.fields
        )
        return self._is_answered()

    def ask(self, **fields: Any) -> Answer:
        answer = self.follower.ask(**fields)
        self.tail += answer.rows["i"].to_pylist()
        return answer

    def follow(self, wait_s: float = 0) -> bool:
        """Make one call, or reload a stale version; returns False if the reload is stale too."""
        return self._is_answered(wait_s) or self._is_loaded()

    def _is_answered(self, wait_s: float = 0) -> bool:
        try:
            self.ask(wait_s=wait_s)
        except fl.FlightUnavailableError as exc:
            if extra(exc)["code"] != "stale":
                raise
            self.stale += 1
            return False
        return True

    def catch_up(self) -> list[int]:
        """Follow to the end; returns all rows, sorted."""
        while not self.follow(wait_s=0) or self.follower.answers[-1].more:
            pass
        return sorted(self.files + self.tail)


@contextmanager
def writing(
    daemon: Daemon, writers: int, batch: Callable[[int, int], pa.RecordBatch]
) -> Iterator[Counter[int]]:
    """Run writers of ``batch(writer, number)`` during the block; yields the batches of each."""
    done, written = threading.Event(), Counter[int]()
    failed: list[BaseException] = []

    def write(writer: int) -> None:
        try:
            with (
                fl.connect(daemon.flight) as client,
                Stream(client, path(TABLE), batch(writer, 0).schema) as stream,
            ):
                while not done.is_set():
                    stream.write(batch(writer, written[writer]))
                    written[writer] += 1
                stream.writer.done_writing()
        except BaseException as exc:
            failed.append(exc)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(writers)]
    for thread in threads:
        thread.start()
    try:
        yield written
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert failed == []


def small_and_large(writer: int, number: int) -> pa.RecordBatch:
    """Rows from ``writer * 10^7``: mostly one row, every tenth time 400 in three partitions."""
    first = writer * 10_000_000 + number * 400
    return events(first, 400 if number % 10 == 0 else 1, days=3)


def expected_of(written: Counter[int]) -> list[int]:
    return sorted(
        i
        for writer, batches in written.items()
        for number in range(batches)
        for i in small_and_large(writer, number)["i"].to_pylist()
    )


@pytest.mark.parametrize("retain_s", [60, 0])
def test_every_row_once_beside_writers_and_flushes(tmp_path: Path, retain_s: int) -> None:
    settings: dict[str, Any] = {
        "persist__max_age": "0.2s",
        "persist__max_partition_bytes": "256KiB",
    }
    with Daemon.start(tmp_path / "d", query__tail_retain=retain_s, **settings) as daemon:
        client = fl.connect(daemon.flight)
        put(client, TABLE, events(-1, 1))
        copies = [Copy(client, TABLE), Copy(client, TABLE)]
        for copy in copies:
            copy.begin()
        # This follower never loads versions; it only advances its position.
        plain = Follower(client, TABLE, position=live(client, TABLE).position)
        with writing(daemon, 6, small_and_large) as written:
            until_s = time.monotonic() + 5
            while time.monotonic() < until_s:
                followed = copies[0].follow(wait_s=1)
                if retain_s:
                    plain.ask(wait_s=1)
                answers = copies[0].follower.answers
                if followed and answers[-1].metadata["manifest_version"] == "7":
                    copies[1].follow(wait_s=1)  # a slow follower
        expected = expected_of(written)
        assert len(expected) > 1000
        for copy in copies:
            assert copy.catch_up() == [-1, *expected]
        if retain_s:
            plain.catch_up()
            assert sorted(plain.column()) == expected
            assert_log_order(plain)
            assert [copy.stale for copy in copies] == [0, 0]
        else:
            assert sum(copy.stale for copy in copies) > 0


def assert_log_order(follower: Follower) -> None:
    """Each writer's rows are in order within each partition, and groups do not overlap."""
    seen: dict[tuple[str, int], int] = {}
    last: defaultdict[str, int] = defaultdict(lambda: -1)
    for answer in follower.answers:
        for group in answer.groups:
            first_seq, last_seq = group.span
            assert last[group.partition] < first_seq <= last_seq <= answer.position["sequence"]
            last[group.partition] = last_seq
            for i in group.rows["i"].to_pylist():
                key = (group.partition, i // 10_000_000)
                assert seen.get(key, -1) < i
                seen[key] = i


def test_operations_and_transactions_over_partitions_are_whole(tmp_path: Path) -> None:
    schema = (
        pa.schema(
            [pa.field("p", pa.int64(), nullable=False), pa.field("k", pa.int64(), nullable=False)]
        )
        .append(pa.field("v", pa.int64()))
        .append(pa.field("s", pa.string()))
    )
    parts, filling = 5, "x" * 100_000
    with Daemon.start(tmp_path / "d", persist__max_partition_bytes="2MiB") as daemon:
        client = fl.connect(daemon.flight)
        create(client, TABLE, schema, primary_key=["p", "k"], partition_by=["identity(p)"])
        follower = Follower(client, TABLE)
        follower.ask()
        done, errors = threading.Event(), list[BaseException]()

        def replicate() -> None:
            try:
                with fl.connect(daemon.flight) as own:
                    for number in range(60):
                        send(own, parts, number, filling)
            except BaseException as exc:
                errors.append(exc)
            finally:
                done.set()

        thread = threading.Thread(target=replicate)
        thread.start()
        copy: dict[int, int] = {}
        cuts = 0
        while not done.is_set() or copy.get(0) != 59:
            answer = follower.ask(wait_s=0.2)
            for row in answer.rows.to_pylist():
                assert row["_op"] == "upsert"
                copy[row["p"]] = row["v"]
            cuts += answer.more
            assert len(set(copy.values())) <= 1, "a transaction came in two pieces"
            assert errors == []
        thread.join()
        assert copy == dict.fromkeys(range(parts), 59)
        assert cuts or len(follower.answers) > 5


def send(client: fl.FlightClient, parts: int, number: int, filling: str) -> None:
    """Send a one-message transaction that changes a row in each partition."""
    old = [None if number == 0 else p for p in range(parts)]
    ones = [None if number == 0 else 1] * parts
    values = {"v": pa.array([number] * parts), "s": pa.array([filling] * parts)}
    columns = [{"role": role, "name": name} for role in ("old_pk", "new_pk") for name in "pk"]
    arrays = [pa.array(old, pa.int64()), pa.array(ones, pa.int64())]
    arrays += [pa.array(range(parts), pa.int64()), pa.array([1] * parts, pa.int64())]
    for name, cells in values.items():
        columns += [{"role": "value", "name": name}, {"role": "changed", "name": name}]
        arrays += [cells, pa.array([True] * parts)]
    batch = pa.record_batch(arrays, names=[f"c{n}" for n in range(len(arrays))])
    fields = {"namespace": TABLE[0], "table": TABLE[1], "origin": "db", "columns": columns}
    said = call(client, {**fields, "begin": True, "sequence": number + 1}, batch)
    assert said["accepted"], said


def test_positions_stay_good_over_kills(tmp_path: Path) -> None:
    daemon = Daemon.start(tmp_path / "d", persist__max_age="1h")
    expected: list[int] = []
    try:
        client = fl.connect(daemon.flight)
        put(client, TABLE, events(0, 1))
        copy = Copy(client, TABLE)
        copy.begin()
        expected.append(0)
        for life in range(4):
            first = 1000 * (life + 1)
            put(client, TABLE, events(first, 5, days=3))
            copy.follow(wait_s=10)
            # At the kill, the follower has some rows, lacks some, and some are in files.
            if life % 2:
                persist(client, TABLE)
                put(client, TABLE, events(first + 5, 5, days=3))
                copy.follow(wait_s=10)
                put(client, TABLE, events(first + 10, 5, days=3))
            expected += range(first, first + (15 if life % 2 else 5))
            daemon.kill()
            daemon = daemon.again()
            client = fl.connect(daemon.flight)
            copy.client = copy.follower.client = client
            assert copy.catch_up() == expected
            epochs = {group.metadata["epoch"] for a in copy.follower.answers for group in a.groups}
            assert max(epochs, default=0) <= life + 2
        assert copy.stale == 0
    finally:
        daemon.kill()


def test_a_clean_restart_is_nothing_to_who_had_everything(tmp_path: Path) -> None:
    daemon = Daemon.start(tmp_path / "d")
    try:
        client = fl.connect(daemon.flight)
        put(client, TABLE, events(0, 5))
        copy = Copy(client, TABLE)
        copy.begin()
        assert daemon.terminate() == 0
        daemon = daemon.again()
        client = copy.client = copy.follower.client = fl.connect(daemon.flight)
        put(client, TABLE, events(5, 5))
        assert copy.catch_up() == list(range(10))
        assert copy.stale == 0
    finally:
        daemon.kill()


def test_who_was_behind_at_a_restart_goes_on_from_files(tmp_path: Path) -> None:
    daemon = Daemon.start(tmp_path / "d")
    try:
        client = fl.connect(daemon.flight)
        put(client, TABLE, events(0, 5))
        copy = Copy(client, TABLE)
        copy.begin()
        put(client, TABLE, events(5, 5))
        assert daemon.terminate() == 0
        daemon = daemon.again()
        client = copy.client = copy.follower.client = fl.connect(daemon.flight)
        with pytest.raises(fl.FlightUnavailableError) as refused:
            copy.ask(wait_s=0)
        assert (extra(refused.value)["code"], extra(refused.value)["anew"]) == ("stale", False)
        assert copy.catch_up() == list(range(10))
        # After two restarts the epoch is unknown.
        position = copy.follower.position
        assert daemon.terminate() == 0
        daemon = daemon.again()
        assert daemon.terminate() == 0
        daemon = daemon.again()
        with pytest.raises(fl.FlightUnavailableError) as refused:
            live(fl.connect(daemon.flight), TABLE, after=position)
        assert (extra(refused.value)["code"], extra(refused.value)["anew"]) == ("stale", True)
    finally:
        daemon.kill()


def test_who_is_behind_takes_files_in_and_keeps_its_position(tmp_path: Path) -> None:
    with Daemon.start(tmp_path / "d", query__tail_retain=0) as daemon:
        client = fl.connect(daemon.flight)
        put(client, TABLE, events(0, 5, days=3))
        persist(client, TABLE)
        put(client, TABLE, events(5, 5, days=3))
        follower = Follower(client, TABLE, position=live(client, TABLE).position)
        put(client, TABLE, events(10, 5, days=3))
        version = persist(client, TABLE)
        put(client, TABLE, events(15, 5, days=3))
        with pytest.raises(fl.FlightUnavailableError) as refused:
            follower.ask(wait_s=0)
        said = extra(refused.value)
        assert (said["code"], said["anew"], said["version"]) == ("stale", False, version)
        follower.version = said["version"]
        follower.catch_up()
        assert sorted(follower.column()) == list(range(15, 20))
        files = rows(client, TABLE, scope="version", version=version)
        assert sorted(files + follower.column()) == list(range(20))


def test_a_stop_ends_the_calls_that_wait_at_once(tmp_path: Path) -> None:
    with Daemon.start(tmp_path / "d") as daemon:
        client = fl.connect(daemon.flight)
        put(client, TABLE, events(0, 1))
        position = live(client, TABLE).position
        parked = [Parked(daemon.flight, TABLE, after=position, wait_s=30) for _ in range(5)]
        until(lambda: waiting(daemon) == 5, "five wait")
        began = time.monotonic()
        assert daemon.terminate() == 0
        assert time.monotonic() - began < 10
        for each in parked:
            # The answer is the version made by the stop, or a refusal.
            with pytest.raises(fl.FlightUnavailableError, match="stopping"):
                each.result()


def waiting(daemon: Daemon) -> int:
    """The number of calls that wait."""
    return streams(daemon, "waiting")


def streams(daemon: Daemon, name: str) -> int:
    """A field of the status's ``streams``."""
    found = json.loads(http(daemon.http + "/api/status")[2])["streams"][name]
    assert isinstance(found, int)
    return found


def test_a_hundred_who_wait_are_told_all_and_take_no_place_of_queries(tmp_path: Path) -> None:
    with Daemon.start(tmp_path / "d", query__max_streams=2) as daemon:
        client = fl.connect(daemon.flight)
        put(client, TABLE, events(0, 1))
        position = live(client, TABLE).position
        parked = [Parked(daemon.flight, TABLE, after=position, wait_s=30) for _ in range(100)]
        until(lambda: waiting(daemon) == 100, "a hundred wait")
        assert rows(client, TABLE) == [0]
        put(client, TABLE, events(1, 3))
        for each in parked:
            assert each.result().rows["i"].to_pylist() == [1, 2, 3]
        until(lambda: waiting(daemon) == 0, "nobody waits")


def test_too_many_who_wait_are_refused_and_those_who_left_do_not_count(tmp_path: Path) -> None:
    with Daemon.start(tmp_path / "d", query__max_followers=2) as daemon:
        client = fl.connect(daemon.flight)
        put(client, TABLE, events(0, 1))
        position = live(client, TABLE).position
        stays = Parked(daemon.flight, TABLE, after=position, wait_s=30)
        until(lambda: waiting(daemon) == 1, "one waits")
        # The call times out, as if its client had been killed.
        options = fl.FlightCallOptions(timeout=0.2)
        asked = {"after": position, "wait_s": 30, "scope": "live"}
        with pytest.raises(fl.FlightTimedOutError):
            client.do_get(ticket(TABLE, **asked), options).read_all()
        assert waiting(daemon) == 2, "nobody has noticed that it is gone"
        # One call gets the place of the vanished client; the other is refused.
        two = [Parked(daemon.flight, TABLE, after=position, wait_s=30) for _ in range(2)]
        until(lambda: not all(each.waits for each in two), "one is refused")
        (there,) = [each for each in two if each.waits]
        (refused,) = [each for each in two if not each.waits]
        with pytest.raises(fl.FlightUnavailableError) as error:
            refused.result()
        assert extra(error.value)["code"] == "limit"
        assert "query.max_followers" in extra(error.value)["message"]
        put(client, TABLE, events(1, 1))
        assert stays.result().rows["i"].to_pylist() == there.result().rows["i"].to_pylist() == [1]


def test_a_follower_that_stops_reading_holds_nobody_up_and_is_let_go(tmp_path: Path) -> None:
    large = pa.array(["x" * 100_000] * 100)
    with Daemon.start(tmp_path / "d", query__client_timeout="1s", query__tail_retain=0) as daemon:
        client = fl.connect(daemon.flight)
        put(client, TABLE, numbers(0, 1, s=large[:1]))
        position = live(client, TABLE).position
        put(client, TABLE, numbers(1, 100, s=large))
        readers = []
        for _ in range(10):
            own = fl.connect(daemon.flight, generic_options=[("grpc.http2.bdp_probe", 0)])
            readers.append(own.do_get(ticket(TABLE, scope="live", after=position)))
            readers[-1].read_chunk()
        other = live(client, TABLE, after=position)
        assert other.rows.num_rows == 100
        persist(client, TABLE)
        put(client, TABLE, numbers(101, 1, s=large[:1]))
        follower = Follower(client, TABLE, position=other.position)
        assert follower.ask().rows["i"].to_pylist() == [101]
        ended = 0
        until(lambda: streams(daemon, "open") == 0, "they are let go")
        for reader in readers:
            try:
                reader.read_all()
            except (fl.FlightTimedOutError, fl.FlightUnavailableError):
                ended += 1
        assert ended, "all of it was on the way already"


def test_what_others_commit_is_told_while_a_call_waits(tmp_path: Path) -> None:
    store = f"file://{tmp_path / 'store'}"
    with (
        Daemon.start(tmp_path / "a", store=store, id="a") as one,
        Daemon.start(tmp_path / "b", store=store, id="b") as two,
    ):
        here, there = fl.connect(one.flight), fl.connect(two.flight)
        put(here, TABLE, numbers(0, 1))
        begun = live(here, TABLE)
        parked = Parked(one.flight, TABLE, after=begun.position, wait_s=30)
        until(lambda: waiting(one) == 1, "one waits")
        put(there, TABLE, numbers(1, 1))
        began = time.monotonic()
        persist(there, TABLE)
        answer = parked.result()
        assert time.monotonic() - began < 10
        assert (answer.groups, answer.version > begun.version) == ([], True)
        assert query(here, TABLE, scope="version", version=answer.version).num_rows >= 0


def test_calls_whose_clients_have_gone_end_by_themselves(tmp_path: Path) -> None:
    with Daemon.start(tmp_path / "d") as daemon:
        client = fl.connect(daemon.flight)
        put(client, TABLE, events(0, 1))
        asked = {"scope": "live", "after": live(client, TABLE).position, "wait_s": 2}
        for _ in range(20):
            with pytest.raises(fl.FlightTimedOutError):
                client.do_get(ticket(TABLE, **asked), fl.FlightCallOptions(timeout=0.05)).read_all()
        until(lambda: waiting(daemon) == streams(daemon, "open") == 0, "nothing is left of them")


def test_an_operation_larger_than_an_answer_goes_alone(tmp_path: Path) -> None:
    with Daemon.start(tmp_path / "d") as daemon:
        client = fl.connect(daemon.flight)
        text = pa.array(["x" * 50_000] * 400)
        put(client, TABLE, numbers(0, 1, s=text[:1]))
        follower = Follower(client, TABLE, position=live(client, TABLE).position)
        put(client, TABLE, numbers(1, 1, s=text[:1]))
        put(client, TABLE, numbers(2, 400, s=text))
        put(client, TABLE, numbers(402, 1, s=text[:1]))
        answers = follower.catch_up()
        assert [answer.rows.num_rows for answer in answers] == [1, 400, 1]
        assert [answer.more for answer in answers] == [True, True, False]
        assert follower.column() == list(range(1, 403))


def test_who_is_behind_does_not_wait(tmp_path: Path) -> None:
    with Daemon.start(tmp_path / "d") as daemon:
        client = fl.connect(daemon.flight)
        text = pa.array(["x" * 100_000] * 10)
        put(client, TABLE, numbers(0, 1, s=text[:1]))
        follower = Follower(client, TABLE, position=live(client, TABLE).position)
        ahead = Follower(client, TABLE, position=follower.position)
        for first in range(1, 401, 10):
            put(client, TABLE, numbers(first, 10, s=text))
            ahead.ask(wait_s=30)
        began = time.monotonic()
        while follower.ask(wait_s=30).more:
            assert time.monotonic() - began < 20
        assert len(follower.answers) >= 10
        assert follower.column() == list(range(1, 401))


def test_the_position_of_a_quiet_table_goes_on_with_the_log(tmp_path: Path) -> None:
    with Daemon.start(tmp_path / "d", query__tail_retain=0) as daemon:
        client = fl.connect(daemon.flight)
        put(client, TABLE, events(0, 1))
        follower = Follower(client, TABLE, position=live(client, TABLE).position)
        for first in range(5):
            put(client, ("shop", "other"), events(first, 1))
            persist(client, ("shop", "other"))
        follower.ask(wait_s=0.05)
        before, after = follower.answers[-1].position, live(client, TABLE).position
        assert before == after
        persist(client, TABLE)
        assert follower.ask(wait_s=0).rows.num_rows == 0


def test_rows_that_go_on_at_another_daemon_are_not_kept_by_who_was_told(tmp_path: Path) -> None:
    store = f"file://{tmp_path / 'store'}"
    with (
        Daemon.start(tmp_path / "a", store=store, id="a") as one,
        Daemon.start(tmp_path / "b", store=store, id="b") as two,
    ):
        here, there = fl.connect(one.flight), fl.connect(two.flight)
        create(here, TABLE, events(0, 1).schema, partition_by=["day(time)"])
        copy = Copy(here, TABLE)
        copy.begin()
        batches = [events(number * 10, 10, days=2) for number in range(6)]
        numbered = [{"sequence": number + 1} for number in range(6)]
        put(here, TABLE, *batches[:4], origin="topic", metadata=numbered[:4])
        assert copy.catch_up() == list(range(40))
        # The client assumes that the first daemon is down and that it has only two batches.
        put(there, TABLE, *batches[2:], origin="topic", metadata=numbered[2:])
        persist(there, TABLE)
        said: list[dict[str, Any]] = []

        def is_told() -> bool:
            try:
                copy.ask(wait_s=1)
            except fl.FlightUnavailableError as exc:
                said.append(extra(exc))
            return bool(said)

        until(is_told, "the word that rows were taken back")
        assert (said[0]["code"], said[0]["anew"]) == ("stale", True)
        copy.begin()
        assert copy.catch_up() == list(range(60)) == rows(here, TABLE)


def test_rows_that_a_restart_leaves_to_another_daemon_are_taken_back(tmp_path: Path) -> None:
    store = f"file://{tmp_path / 'store'}"
    one = Daemon.start(tmp_path / "a", store=store, id="a")
    try:
        here = fl.connect(one.flight)
        create(here, TABLE, events(0, 1).schema, partition_by=["day(time)"])
        copy = Copy(here, TABLE)
        copy.begin()
        batches = [events(number * 10, 10, days=2) for number in range(6)]
        numbered = [{"sequence": number + 1} for number in range(6)]
        put(here, TABLE, *batches[:4], origin="topic", metadata=numbered[:4])
        assert copy.catch_up() == list(range(40))
        one.kill()
        with Daemon.start(tmp_path / "b", store=store, id="b") as two:
            there = fl.connect(two.flight)
            put(there, TABLE, *batches[2:], origin="topic", metadata=numbered[2:])
            persist(there, TABLE)
        one = one.again()
        here = copy.client = copy.follower.client = fl.connect(one.flight)
        with pytest.raises(fl.FlightUnavailableError) as refused:
            copy.ask(wait_s=0)
        assert (extra(refused.value)["code"], extra(refused.value)["anew"]) == ("stale", True)
        copy.begin()
        assert copy.catch_up() == list(range(60)) == rows(here, TABLE)
    finally:
        one.kill()


def test_a_daemon_outlives_a_followed_table_that_is_away_for_a_while(tmp_path: Path) -> None:
    store = f"file://{tmp_path / 'store'}"
    with (
        Daemon.start(tmp_path / "d", store=store, manifest__refresh="50ms") as daemon,
        fl.connect(daemon.flight) as client,
    ):
        put(client, TABLE, numbers(0, 10))
        persist(client, TABLE)
        copy = Copy(client, TABLE)
        copy.begin()
        assert copy.catch_up() == list(range(10))
        manifest = tmp_path / "store" / "shop" / "visits" / "v1" / "_manifest"
        manifest.rename(tmp_path / "away")
        until(lambda: "manifest refresh failed" in daemon.stderr_file.read_text(), "a failed look")
        put(client, TABLE, numbers(10, 10))
        assert copy.catch_up() == list(range(20))
        (tmp_path / "away").rename(manifest)
        persist(client, TABLE)
        assert copy.catch_up() == list(range(20)) == rows(client, TABLE)
        assert daemon.terminate() == 0
