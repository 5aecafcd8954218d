"""A writer with ``keep_until_durable`` moves between daemons; no query lacks acknowledged rows."""

from __future__ import annotations

import shutil
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from ingester.client import (
    Checkpoint,
    Client,
    RetryPolicy,
    Unavailable,
    Writer,
    sender,
    undurable,
)
from ingester.client.cluster import route
from ingester.client.cluster.daemons import ranked
from ingester.client.undurable import UndurableBatches
from tests.client.cluster.three import Three, three
from tests.drivers.waiting import until

SCHEMA = pa.schema({"n": pa.int64()})
PATIENT = RetryPolicy(for_s=30, first_delay_s=0.02, max_delay_s=0.3)


@pytest.fixture(scope="module")
def daemons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Three]:
    yield from three(tmp_path_factory.mktemp("keeping"))


@pytest.fixture
def client(daemons: Three) -> Iterator[Client]:
    with Client(daemons.endpoints, timeout_s=10, retry=PATIENT) as connected:
        yield connected


def rows(n: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array([n], pa.int64())})


def keeping(client: Client, table: str) -> Writer:
    options = {"origin": "o", "first_sequence": 1, "keep_until_durable": True}
    return client.writer("ns", table, SCHEMA, **options)  # type: ignore[arg-type]


def home(daemons: Three, table: str) -> int:
    """Return the number of the daemon that the table's writer prefers."""
    return daemons.number(ranked(("ns", table, "o"), daemons.endpoints)[0])


def states(daemons: Three, table: str) -> list[bytes | None]:
    """Return the source's state in each daemon's log."""
    found = []
    for endpoint in daemons.endpoints:
        with Client(endpoint, timeout_s=10, retry=PATIENT) as one:
            found.append(one.checkpoint("ns", table, "p").state)
    return found


class Watching:
    """A second client that queries continuously and fails on a missing or duplicate row."""

    def __init__(self, daemons: Three, table: str) -> None:
        self.acknowledged = 0
        self.looks = 0
        self.wrong: list[str] = []
        self.first = 0
        """The first row that every query must return."""
        self._table = table
        self._ended = threading.Event()
        self._endpoints = daemons.endpoints
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Watching:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(60)
        assert not self.wrong
        assert self.looks > 3

    def write(self, writer: Writer, count: int, *, at_once: int = 1) -> int:
        """Write ``count`` more rows, wait for each acknowledgement, and return the total."""
        for _ in range(count // at_once):
            upto = self.acknowledged + at_once
            for answer in [writer.write(rows(n)) for n in range(self.acknowledged, upto)]:
                answer.result(30)
            self.acknowledged = upto
        return self.acknowledged

    def returns_home(self, writer: Writer, home: str) -> None:
        """Write until the stream is at ``home`` while other daemons hold acknowledged rows."""
        left = writer._route.undurable
        assert isinstance(left, UndurableBatches)
        until(
            lambda: self.write(writer, 1) > 0 and bool({*left.endpoints()} - {home}),
            "the writer to be at home again",
        )

    def looked(self, times: int = 2) -> None:
        """Wait for ``times`` more queries."""
        before = self.looks
        until(lambda: bool(self.wrong) or self.looks >= before + times, "somebody to look")

    def _look(self) -> None:
        try:
            with Client(self._endpoints, timeout_s=10, retry=PATIENT) as client:
                while not self._ended.is_set():
                    upto, first = self.acknowledged, self.first
                    there = client.query("ns", self._table)["n"].to_pylist()
                    found = sorted(n for n in there if n >= first)
                    if found != [*range(first, first + len(found))] or first + len(found) < upto:
                        lacks = sorted({*range(first, upto)} - {*found})
                        twice = sorted(n for n, count in Counter(found).items() if count > 1)
                        self.wrong.append(
                            f"of {upto} rows {lacks} were missing, {len(found)} there, up to"
                            f" {found[-1:]}, {twice} more than once"
                        )
                        return
                    self.looks += 1
        except BaseException as exc:
            self.wrong.append(repr(exc))


def test_no_row_is_hidden_while_a_writer_leaves_a_daemon_and_returns(
    daemons: Three, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(route, "BACK_S", 0.1)
    client.create_table("ns", "moving", SCHEMA)
    first = home(daemons, "moving")
    with Watching(daemons, "moving") as watch, keeping(client, "moving") as writer:
        watch.write(writer, 40)
        watch.looked()
        with Client([daemons.endpoints[first]]) as one:
            one.action("drain", {})  # a list of one endpoint works, too
            watch.write(writer, 20)
            watch.looked()
            one.action("drain", {"undo": True})
        # The stream returns home at a batch; rows acknowledged by the other daemon stay there.
        watch.returns_home(writer, daemons.endpoints[first])
        watch.write(writer, 20)
        watch.looked()
        daemons.daemons[first].kill()
        watch.write(writer, 20)
        daemons.again(first)
        watch.write(writer, 20)
        watch.looked()
        total = writer.close()
    assert total.batches == watch.acknowledged
    assert total.duplicates == 0
    client.persist("ns", "moving")
    assert client.query("ns", "moving").num_rows == watch.acknowledged


def test_rows_of_a_lost_disk_are_resent_before_their_writer_is_answered(
    daemons: Three, client: Client
) -> None:
    client.create_table("ns", "lost", SCHEMA)
    first = home(daemons, "lost")
    with keeping(client, "lost") as writer:
        for number in range(30):
            writer.write(rows(number)).result(10)
        victim = daemons.daemons[first]
        victim.kill()
        for number in range(30, 35):
            writer.write(rows(number)).result(10)
        # With missing="allow" the answer names the unreachable daemon and has the others' rows.
        without = client.query("ns", "lost", missing="allow")
        assert sorted(without["n"].to_pylist()) == [*range(30, 35)]
        assert victim.flight.encode() in without.schema.metadata[b"missing"]
        shutil.rmtree(daemons.folder / f"d{first}")
        daemons.again(first, "--accept-lost-log")
        assert sorted(client.query("ns", "lost")["n"].to_pylist()) == [*range(35)]
        writer.write(rows(35)).result(10)
    with Client(daemons.endpoints) as other:
        assert sorted(other.query("ns", "lost")["n"].to_pylist()) == [*range(36)]


def test_no_row_of_another_daemon_is_hidden_while_a_lost_disk_is_resent(
    daemons: Three, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The writer may return before it has resent all lost rows.
    monkeypatch.setattr(route, "BACK_S", 0.0)
    monkeypatch.setattr(sender, "LOOK_AGAIN_S", 3600.0)  # the daemon is asked only on its return
    client.create_table("ns", "hidden", SCHEMA)
    first = home(daemons, "hidden")
    with Watching(daemons, "hidden") as watch, keeping(client, "hidden") as writer:
        watch.write(writer, 400)
        watch.first = watch.acknowledged  # these rows are lost and resent
        watch.looked()
        daemons.daemons[first].kill()
        shutil.rmtree(daemons.folder / f"d{first}")
        watch.write(writer, 400)
        daemons.again(first, "--accept-lost-log")
        began = watch.looks
        watch.returns_home(writer, daemons.endpoints[first])
        watch.looked()
        assert watch.looks > began
        watch.first = 0
        watch.looked()
        writer.close()
    assert client.query("ns", "hidden").num_rows == watch.acknowledged


def test_rows_of_a_daemon_that_never_returns_are_resent_to_another(
    daemons: Three, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(undurable, "UNREACHABLE_S", 0.5)
    client.create_table("ns", "gone", SCHEMA)
    first = home(daemons, "gone")
    try:
        with keeping(client, "gone") as writer:
            for number in range(30):
                writer.write(rows(number)).result(10)
            daemons.daemons[first].kill()
            writer.write(rows(30)).result(10)
        # Closing the writer has sent every row to another daemon, under the same sequences.
        found = client.query("ns", "gone", missing="allow")
        assert sorted(found["n"].to_pylist()) == [*range(31)]
    finally:
        daemons.again(first)
    assert sorted(client.query("ns", "gone")["n"].to_pylist()) == [*range(31)]


def test_a_query_without_its_own_writers_rows_names_their_origin(
    daemons: Three, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The writer asks the daemon only at the end.
    monkeypatch.setattr(sender, "LOOK_AGAIN_S", 3600.0)
    client.create_table("ns", "waiting", SCHEMA)
    first = home(daemons, "waiting")
    with keeping(client, "waiting") as writer:
        for number in range(10):
            writer.write(rows(number)).result(10)
        daemons.daemons[first].kill()
        shutil.rmtree(daemons.folder / f"d{first}")
        daemons.again(first, "--accept-lost-log")
        with pytest.raises(
            Unavailable, match="origin 'o': rows that this client has written to ns"
        ):
            client.query("ns", "waiting", timeout_s=0.5)
        assert client.query("ns", "waiting", version=1).num_rows == 0
        writer.close()
    assert sorted(client.query("ns", "waiting")["n"].to_pylist()) == [*range(10)]


def test_lost_rows_of_a_keyed_table_are_resent_before_newer_ones(
    daemons: Three, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The writer asks the daemon only at the end.
    monkeypatch.setattr(sender, "LOOK_AGAIN_S", 3600.0)
    schema = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("n", pa.int64())])
    client.create_table("ns", "keyed", schema, primary_key=["k"])
    options = {"origin": "o", "first_sequence": 1, "keep_until_durable": True}
    with client.writer("ns", "keyed", schema, **options) as writer:  # type: ignore[arg-type]
        for number in range(5):
            writer.write({"k": [7], "n": [number]}).result(10)
        owner = client.describe("ns", "keyed").owner
        assert owner is not None
        first = int(owner.ingester_id.removeprefix("d"))
        daemons.daemons[first].kill()
        shutil.rmtree(daemons.folder / f"d{first}")
        daemons.again(first, "--accept-lost-log")
        writer.write({"k": [7], "n": [5]}).result(20)
    assert client.query("ns", "keyed").to_pylist() == [{"k": 7, "n": 5}]


def test_a_killed_source_resumes_before_the_rows_of_a_lost_disk(
    daemons: Three, client: Client
) -> None:
    """The rows that went to another daemon are flushed; the rows on the lost disk are not."""
    client.create_table("ns", "source", SCHEMA)
    first = home(daemons, "source")
    writer = keeping(client, "source")
    for number in range(1, 9):
        writer.write(rows(number), Checkpoint("p", b"%d" % number)).result(20)
        if number == 5:
            daemons.daemons[first].kill()
            shutil.rmtree(daemons.folder / f"d{first}")
    for endpoint in daemons.endpoints:
        if endpoint != daemons.endpoints[first]:
            with Client(endpoint) as one:
                one.persist("ns", "source")
    writer.abort()
    daemons.again(first, "--accept-lost-log")
    begin = int(client.checkpoint("ns", "source", "p").durable_state or 0) + 1
    options = {"origin": "o", "first_sequence": begin, "keep_until_durable": True}
    with client.writer("ns", "source", SCHEMA, **options) as writer:  # type: ignore[arg-type]
        for number in range(begin, 11):
            writer.write(rows(number), Checkpoint("p", b"%d" % number)).result(20)
    assert sorted(client.query("ns", "source")["n"].to_pylist()) == [*range(1, 11)]


@pytest.mark.parametrize("closes", [False, True])
def test_a_state_waiting_for_another_daemons_rows_is_finally_committed(
    daemons: Three, client: Client, closes: bool
) -> None:
    """The state also advances when the source writes nothing more."""
    table = f"states_{closes}"
    client.create_table("ns", table, SCHEMA)
    first = home(daemons, table)
    with keeping(client, table) as writer:
        for number in range(1, 7):
            if number == 4:
                daemons.daemons[first].kill()
            writer.write(rows(number), Checkpoint("p", b"%d" % number)).result(20)
        daemons.again(first)
        assert client.checkpoint("ns", table, "p").state == b"3"
        if not closes:
            client.persist("ns", table)
            until(lambda: b"6" in states(daemons, table), "the state")
    client.persist("ns", table)
    assert client.checkpoint("ns", table, "p").durable_state == b"6"
    assert sorted(client.query("ns", table)["n"].to_pylist()) == [*range(1, 7)]


def _homes(daemons: Three, client: Client, table: str) -> list[str]:
    """Create a table and return the endpoints in its writer's order of preference."""
    client.create_table("ns", table, SCHEMA)
    return ranked(("ns", table, "o"), daemons.endpoints)


def test_no_row_of_two_other_daemons_is_hidden_while_a_lost_disk_is_resent(
    daemons: Three, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(route, "BACK_S", 0.0)
    monkeypatch.setattr(sender, "LOOK_AGAIN_S", 3600.0)  # the daemon is asked only on its return
    in_order = _homes(daemons, client, "spread")
    first, second = map(daemons.number, in_order[:2])
    with Watching(daemons, "spread") as watch, keeping(client, "spread") as writer:
        watch.write(writer, 400)
        watch.first = watch.acknowledged  # these rows are lost and resent
        watch.looked()
        daemons.daemons[first].kill()
        shutil.rmtree(daemons.folder / f"d{first}")
        watch.write(writer, 1)
        daemons.daemons[second].kill()
        watch.write(writer, 400)
        daemons.again(second)
        left = writer._route.undurable
        assert isinstance(left, UndurableBatches)
        until(
            lambda: watch.write(writer, 1) > 0 and in_order[2] in left.endpoints(),
            "the writer to be at the second one",
        )
        daemons.again(first, "--accept-lost-log")
        began = watch.looks
        until(
            lambda: watch.write(writer, 1) > 0 and writer._route.endpoint == in_order[0],
            "the writer to be at home again",
        )
        watch.looked()
        assert watch.looks > began
        watch.first = 0
        watch.looked()
        writer.close()
    assert client.query("ns", "spread").num_rows == watch.acknowledged


def test_no_row_of_a_late_daemon_is_hidden_while_a_lost_disk_is_resent(
    daemons: Three, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer left the daemon after a timeout, but the daemon still runs."""
    monkeypatch.setattr(route, "BACK_S", 0.0)
    with Client(daemons.endpoints, timeout_s=10, retry=PATIENT) as other:
        in_order = _homes(daemons, other, "still")
    first, second = map(daemons.number, in_order[:2])
    stands_still = daemons.daemons[second].process
    with (
        Client(daemons.endpoints, timeout_s=2, retry=PATIENT) as client,
        Watching(daemons, "still") as watch,
        keeping(client, "still") as writer,
    ):
        watch.write(writer, 1500, at_once=100)
        watch.first = watch.acknowledged  # these rows are lost and resent
        watch.looked()
        daemons.daemons[first].kill()
        shutil.rmtree(daemons.folder / f"d{first}")
        watch.write(writer, 1500, at_once=100)
        left = writer._route.undurable
        assert isinstance(left, UndurableBatches)
        stands_still.send_signal(signal.SIGSTOP)
        try:
            watch.write(writer, 1)
            daemons.again(first, "--accept-lost-log")
            until(lambda: left.owes or left.sends_again, "the writer to see what is lost")
        finally:
            stands_still.send_signal(signal.SIGCONT)
        began = watch.looks
        watch.write(writer, 1)
        watch.looked()
        assert watch.looks > began
        until(lambda: not (left.owes or left.sends_again), "the writer to have sent all again")
        watch.first = 0
        watch.looked()


def test_no_row_is_hidden_if_the_daemon_that_receives_the_resent_rows_is_late(
    daemons: Three, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The late daemon holds rows that are newer than those the writer sends elsewhere."""
    monkeypatch.setattr(route, "BACK_S", 3600.0)
    with Client(daemons.endpoints, timeout_s=10, retry=PATIENT) as other:
        in_order = _homes(daemons, other, "late")
    first, second = map(daemons.number, in_order[:2])
    late = daemons.daemons[second].process
    with (
        Client(daemons.endpoints, timeout_s=2, retry=PATIENT) as client,
        ThreadPoolExecutor(1) as pool,
        Watching(daemons, "late") as watch,
        keeping(client, "late") as writer,
    ):
        left = writer._route.undurable
        assert isinstance(left, UndurableBatches)
        watch.write(writer, 6000, at_once=100)
        watch.first = watch.acknowledged  # these rows are lost and resent
        watch.looked()
        daemons.daemons[first].kill()
        shutil.rmtree(daemons.folder / f"d{first}")
        watch.write(writer, 500, at_once=100)
        daemons.again(first, "--accept-lost-log")
        until(lambda: left.sends_again, "what is lost to be sent")
        late.send_signal(signal.SIGSTOP)
        try:
            written = pool.submit(watch.write, writer, 1)
            until(lambda: writer._route.endpoint != in_order[1], "the writer to go elsewhere")
            assert left.sends_again
        finally:
            late.send_signal(signal.SIGCONT)
        written.result()
        watch.looked()
        until(lambda: not (left.owes or left.sends_again), "the writer to have sent all again")
        watch.first = 0
        watch.looked()


def test_rows_of_a_lost_disk_are_resent_while_another_daemon_is_unreachable(
    daemons: Three, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer does not wait for an unreachable daemon; it resends that daemon's rows, too."""
    monkeypatch.setattr(route, "BACK_S", 3600.0)
    in_order = _homes(daemons, client, "away")
    first, second = map(daemons.number, in_order[:2])
    try:
        with keeping(client, "away") as writer:
            for number in range(30):
                writer.write(rows(number)).result(10)
                if number in (9, 19):
                    daemons.daemons[(first, second)[number > 9]].kill()
            shutil.rmtree(daemons.folder / f"d{first}")
            daemons.again(first, "--accept-lost-log")

            def found() -> list[int]:
                there = client.query("ns", "away", missing="allow", timeout_s=60)
                return sorted(there["n"].to_pylist())

            until(lambda: found() == [*range(30)], "all to be there", undurable.UNREACHABLE_S / 2)
    finally:
        daemons.again(second)
    until(lambda: client.query("ns", "away").num_rows == 30, "each row to be there once")
