"""A transformed table after its daemon is killed and restarted, possibly with a changed class."""

from __future__ import annotations

import base64
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from tests.drivers.daemon import Daemon
from tests.drivers.wire import (
    Stream,
    act,
    create,
    describe,
    events,
    numbers,
    origin_of,
    persist,
    put,
    rows,
    writing,
)

TABLE = ("tr", "t")
SOURCE = '''
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from ingester.transform import SKIP, Transformer

class Times(Transformer):
    """Multiplies ``i``, skips what has only odd ones, and leaves a line for each call."""
    {version}

    def transform(self, batch):
        with Path(__file__).with_name("calls").open("a") as calls:
            calls.write("called\\n")
        even = pc.equal(pc.bit_wise_and(batch["i"], 1), 0)
        if not pc.any(even).as_py():
            return SKIP
        at = batch.schema.get_field_index("i")
        return batch.set_column(at, "i", pc.multiply(batch["i"], {times}))
'''


class Package:
    """A package with one transformer, in a folder on the daemon's import path."""

    name = "acme_rules.times:Times"

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "acme_rules"
        self.folder.mkdir()
        (self.folder / "__init__.py").touch()
        self.written = 0
        self.write(10)

    def write(self, times: int, version: str = "pass") -> None:
        source = self.folder / "times.py"
        source.write_text(SOURCE.format(times=times, version=version))
        # Python compares the source's time in whole seconds to detect stale bytecode.
        self.written += 1
        os.utime(source, (self.written, self.written))

    @property
    def calls(self) -> int:
        """The number of batches that it was called with."""
        file = self.folder / "calls"
        return len(file.read_text().splitlines()) if file.exists() else 0


@pytest.fixture
def package(tmp_path: Path) -> Package:
    return Package(tmp_path)


@pytest.fixture
def start(tmp_path: Path, package: Package) -> Iterator[Callable[..., Daemon]]:
    started: list[Daemon] = []
    environment = {"PYTHONPATH": str(tmp_path)}

    def run(folder: str = "d", **settings: object) -> Daemon:
        settings = {"transform__allowed": "acme_rules.*", **settings}
        daemon = Daemon.start(
            tmp_path / folder,
            environment=environment,
            arguments=["--store", f"file://{tmp_path / 'store'}"],
            **settings,
        )
        started.append(daemon)
        return daemon

    yield run
    for daemon in started:
        daemon.kill()


def test_replay_transforms_nothing_even_when_the_class_is_gone(
    start: Callable[..., Daemon], package: Package
) -> None:
    daemon = start()
    with fl.connect(daemon.flight) as client:
        create(client, TABLE, pa.schema({"i": pa.int64()}), transformers=[package.name])
        put(client, TABLE, numbers(1, 2), numbers(3, 1), numbers(4, 1))
    assert package.calls == 3
    daemon.kill()
    shutil.rmtree(package.folder)
    with start() as daemon, fl.connect(daemon.flight) as client:
        assert rows(client, TABLE) == [10, 20, 40]
        with pytest.raises(pa.ArrowNotImplementedError, match="No module named 'acme_rules'"):
            put(client, TABLE, numbers(6, 1))
        persist(client, TABLE)
        assert rows(client, TABLE) == [10, 20, 40]


def test_skipped_batches_of_an_origin_are_known_after_a_kill(
    start: Callable[..., Daemon], package: Package
) -> None:
    def send(client: fl.FlightClient, first: int, last: int) -> list[bool]:
        sequences = range(first, last + 1)
        answers = put(
            client,
            TABLE,
            *[numbers(n, 1) for n in sequences],
            origin="o",
            metadata=[{"sequence": n} for n in sequences],
        )
        return [answer["duplicate"] for answer in answers]

    daemon = start()
    with fl.connect(daemon.flight) as client:
        create(client, TABLE, pa.schema({"i": pa.int64()}), transformers=[package.name])
        assert send(client, 0, 3) == [False] * 4
    daemon.kill()
    daemon = start()
    with fl.connect(daemon.flight) as client:
        assert origin_of(client, "o")["memory_sequence"] == 3
        assert send(client, 0, 4) == [True] * 4 + [False]
        assert send(client, 5, 5) == [False]
        persist(client, TABLE)
        assert origin_of(client, "o")["durable_sequence"] == 5
    daemon.kill()
    # The log is lost, so the origin's position comes from the files.
    with start("other", id="other") as daemon, fl.connect(daemon.flight) as client:
        assert send(client, 3, 6) == [True, True, True, False]
        assert rows(client, TABLE) == [0, 20, 40, 60]


def test_the_checkpoint_of_a_skipped_batch_is_kept(
    start: Callable[..., Daemon], package: Package
) -> None:
    def state(client: fl.FlightClient) -> tuple[bytes, bool]:
        (answer,) = act(client, "checkpoint_get", namespace=TABLE[0], table=TABLE[1], partition="p")
        return base64.b64decode(answer["state"]), answer["durable"]

    def sent(client: fl.FlightClient, first: int, state: bytes, origin: str | None) -> None:
        checkpoint = {"partition": "p", "state": base64.b64encode(state).decode()}
        sequence = {} if origin is None else {"sequence": first}
        metadata = [{**sequence, "checkpoint": checkpoint}]
        put(client, TABLE, numbers(first, 1), origin=origin, metadata=metadata)

    daemon = start()
    with fl.connect(daemon.flight) as client:
        create(client, TABLE, pa.schema({"i": pa.int64()}), transformers=[package.name])
        sent(client, 2, b"written", "o")
        sent(client, 3, b"skipped", "o")
        assert state(client)[0] == b"skipped"
    daemon.kill()
    daemon = start()
    with fl.connect(daemon.flight) as client:
        assert state(client)[0] == b"skipped"
        persist(client, TABLE)
        assert state(client) == (b"skipped", True)
        sent(client, 5, b"skipped without an origin", None)
    daemon.kill()
    with start() as daemon, fl.connect(daemon.flight) as client:
        assert state(client)[0] == b"skipped without an origin"
        assert rows(client, TABLE) == [20]


def test_only_skipped_batches_leave_a_log_that_can_be_let_go(
    start: Callable[..., Daemon], package: Package
) -> None:
    daemon = start(wal__segment_bytes="4KiB")
    with fl.connect(daemon.flight) as client:
        create(client, TABLE, pa.schema({"i": pa.int64()}), transformers=[package.name])
        sequences = range(200)
        put(
            client,
            TABLE,
            *[numbers(1, 1)] * 200,
            origin="o",
            metadata=[{"sequence": n} for n in sequences],
        )
    daemon.kill()
    daemon = start(wal__segment_bytes="4KiB")
    with fl.connect(daemon.flight) as client:
        assert origin_of(client, "o")["memory_sequence"] == 199
        persist(client, TABLE)
    assert daemon.terminate() == 0
    with start() as daemon, fl.connect(daemon.flight) as client:
        (answer,) = put(client, TABLE, numbers(1, 1), origin="o", metadata=[{"sequence": 199}])
        assert answer["duplicate"]


def test_a_changed_class_is_told_in_the_log_and_in_the_status(
    start: Callable[..., Daemon], package: Package
) -> None:
    daemon = start()
    with fl.connect(daemon.flight) as client:
        create(client, TABLE, pa.schema({"i": pa.int64()}), transformers=[package.name])
        put(client, TABLE, numbers(2, 1))
        (before,) = describe(client, TABLE)["transformers"]
    assert before["version"].startswith("sha256:")
    assert daemon.terminate() == 0
    assert "transformer changed" not in daemon.stderr_file.read_text()
    package.write(100)
    daemon = start()
    with fl.connect(daemon.flight) as client:
        put(client, TABLE, numbers(4, 1))
        put(client, TABLE, numbers(6, 1))
        assert rows(client, TABLE) == [20, 400, 600]
        (now,) = describe(client, TABLE)["transformers"]
        (table,) = act(client, "status")[0]["tables"]
    assert now["version"] != now["previous"] == before["version"]
    assert table["transformers"] == [now]
    told = daemon.stderr_file.read_text()
    assert told.count("transformer changed") == 1
    assert '"runbook": "transformer-changed"' in told or "transformer-changed" in told
    daemon.kill()
    with start() as daemon, fl.connect(daemon.flight) as client:  # no change since the last start
        put(client, TABLE, numbers(8, 1))
        assert describe(client, TABLE)["transformers"] == [now]
        assert daemon.stderr_file.read_text().count("transformer changed") == 1


def test_a_class_with_a_version_of_its_own_changes_with_that_alone(
    start: Callable[..., Daemon], package: Package
) -> None:
    versions = []
    for times, version in ((10, 'version = "1"'), (20, 'version = "1"'), (20, 'version = "2"')):
        package.write(times, version)
        with start() as daemon, fl.connect(daemon.flight) as client:
            create(client, TABLE, pa.schema({"i": pa.int64()}), transformers=[package.name])
            put(client, TABLE, numbers(2, 1))
            (used,) = describe(client, TABLE)["transformers"]
            versions.append((used["version"], used["previous"]))
    assert versions == [("1", None), ("1", None), ("2", "1")]


def test_a_table_that_settings_transformed_is_not_written_without_them(
    start: Callable[..., Daemon], package: Package
) -> None:
    named = '{"tr/t": {"transformers": ["acme_rules.times:Times"]}}'
    with start(tables=named, transform__allowed="") as daemon, fl.connect(daemon.flight) as client:
        put(client, TABLE, numbers(2, 1))
        assert daemon.terminate() == 0
    with start(transform__allowed="") as daemon, fl.connect(daemon.flight) as client:
        with pytest.raises(pa.ArrowNotImplementedError, match="this daemon does not allow it"):
            put(client, TABLE, numbers(4, 1))
        assert daemon.terminate() == 0
    off = '{"tr/t": {"transformers": []}}'
    with start(tables=off, transform__allowed="") as daemon, fl.connect(daemon.flight) as client:
        put(client, TABLE, numbers(4, 1))
        assert rows(client, TABLE) == [4, 20]
        assert "transformers replaced" in daemon.stderr_file.read_text()
        assert daemon.terminate() == 0
    with start(transform__allowed="") as daemon, fl.connect(daemon.flight) as client:
        put(client, TABLE, numbers(6, 1))
        assert rows(client, TABLE) == [4, 6, 20]


def test_every_batch_is_there_once_after_kills_under_way(
    start: Callable[..., Daemon], package: Package
) -> None:
    count, upto = 240, 0
    for answers in (17, 40, 3, 90, count):
        daemon = start(wal__segment_bytes="64KiB", persist__max_age="200ms")
        with fl.connect(daemon.flight) as client:
            create(client, TABLE, events(0, 1).schema, transformers=[package.name])
            stream = Stream(client, writing(TABLE, "o"), events(0, 1).schema)
            with suppress(fl.FlightError):
                first = max(0, upto - 20)  # resend some batches that may or may not have been lost
                for sequence in range(first, count):
                    stream.send(events(sequence, 1, days=5), {"sequence": sequence})
                for sequence in range(first, min(count, first + answers)):
                    assert stream.answer() is not None
                    upto = sequence + 1
            if answers == count:
                stream.rest()
                assert rows(client, TABLE) == [10 * i for i in range(0, count, 2)]
        daemon.kill()


def test_a_batch_over_many_partitions_is_transformed_once(
    start: Callable[..., Daemon], package: Package
) -> None:
    daemon = start()
    with fl.connect(daemon.flight) as client:
        create(client, TABLE, events(0, 1).schema, transformers=[package.name])
        for _ in range(2):
            put(client, TABLE, events(0, 6, days=3), origin="o", metadata=[{"sequence": 1}])
        assert rows(client, TABLE) == [0, 10, 20, 30, 40, 50]
    daemon.kill()
    with start() as daemon, fl.connect(daemon.flight) as client:
        assert rows(client, TABLE) == [0, 10, 20, 30, 40, 50]
