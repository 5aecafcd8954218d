"""What may befall a daemon, and the alerts that it has to fire.

A fault is a generator that stops three times: before it, while it is, and when it is over. Each
time it gives the address of a daemon that is to be scraped, or None where it has none. It stops
when the daemon itself has noticed.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Generator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.flight as fl

from ingester.lifecycle.push_status import status_path
from persist.store import open_store
from tests.alerts.recorded import scrape
from tests.crash.worlds import FILE_SYSTEM_BYTES, mount
from tests.drivers.certificates import Authority
from tests.drivers.daemon import Daemon
from tests.drivers.tokens import Tokens
from tests.drivers.waiting import until
from tests.drivers.wire import ARROW_AND_FLIGHT, act, create, numbers, put
from tests.write.transform.acme import MODULE

Stops = Generator[str | None, None, None]
Settings = dict[str, Any]
SLOT_BYTES = 21 << 30
WRITTEN = ("s", "t")
"""The table that rows are written to."""


class Fault(NamedTuple):
    """A fault and the alerts that fire while it is."""

    run: Callable[[Path], Stops]
    alerts: frozenset[str]
    slow: bool = False
    """Whether it takes more than some seconds."""


def raised(daemon: Daemon, *alarms: str, is_up: bool = True) -> None:
    """Wait until the daemon tells of these alarms, or of none of them."""

    def told() -> bool:
        found = scrape(daemon.http) or {}
        values = [found.get(("ingester_alarm", (("alarm", name),))) for name in alarms]
        return values == [float(is_up)] * len(alarms)

    until(told, f"alarms {alarms} to be {'raised' if is_up else 'over'}", 120.0)


def refused(client: fl.FlightClient, table: tuple[str, str], batch: pa.RecordBatch) -> None:
    """Write until a batch is refused."""
    for _ in range(10_000):
        try:
            put(client, table, batch)
        except ARROW_AND_FLIGHT:
            return
    raise AssertionError("nothing was refused")


@contextlib.contextmanager
def without(folder: Path) -> Iterator[None]:
    """Have a folder away, as a store that is not mounted."""
    aside = folder.with_name(folder.name + ".away")
    folder.rename(aside)
    folder.touch()
    try:
        yield
    finally:
        folder.unlink()
        aside.rename(folder)


def _without_store(
    folder: Path,
    settings: dict[str, Any],
    write: Callable[[fl.FlightClient], object],
    *alarms: str,
) -> Stops:
    """Rows come while the store is away, until these alarms are raised beside those of a store."""
    expected = (*alarms, "store-away", "persist-failing")
    with Daemon.start(folder / "d", **settings) as daemon, fl.connect(daemon.flight) as client:
        put(client, WRITTEN, numbers(0, 10))
        yield daemon.http
        with without(daemon.data_dir / "store"):
            write(client)
            raised(daemon, *expected)
            yield daemon.http
        raised(daemon, *expected, is_up=False)
        yield daemon.http


def store_away(folder: Path) -> Stops:
    """The store is away, and rows are to be persisted."""
    settings = {"persist__max_age": "500ms"}
    return _without_store(folder, settings, lambda client: put(client, WRITTEN, numbers(10, 10)))


def oldest_row(folder: Path) -> Stops:
    """The same for longer than a row may be in no file: a minute, and twice ``persist.max_age``."""
    settings = {"persist__max_age": "500ms"}
    return _without_store(
        folder, settings, lambda client: put(client, WRITTEN, numbers(10, 10)), "oldest-row"
    )


def saturated(folder: Path) -> Stops:
    """Rows come, and none gets into a file."""
    settings = {
        "persist__max_age": "1s",
        "persist__queue_bytes": "1MiB",
        "persist__max_partition_bytes": "64KiB",
    }
    too_many = numbers(10, 20_000)
    return _without_store(
        folder, settings, lambda client: refused(client, WRITTEN, too_many), "saturated"
    )


def memory_high(folder: Path) -> Stops:
    """Rows come until there is no memory for more."""
    settings = {
        "persist__max_age": "1s",
        "memory__limit": "256MiB",
        "memory__high": "8MiB",
        "memory__low": "4MiB",
    }
    too_many = numbers(10, 50_000)
    return _without_store(
        folder, settings, lambda client: refused(client, WRITTEN, too_many), "memory-high"
    )


def disk_full(folder: Path) -> Stops:
    """The log's disk has no room; its store is elsewhere."""
    disk = folder / "disk"
    disk.mkdir(parents=True)
    assert mount(disk), "a tmpfs cannot be mounted here, which takes the rights of root"
    try:
        store = f"file://{folder / 'store'}"
        settings: Settings = {"store": store, "wal__segment_bytes": "4MiB"}
        with (
            Daemon.start(disk / "d", **settings) as daemon,
            fl.connect(daemon.flight) as client,
        ):
            put(client, WRITTEN, numbers(0, 10))
            yield daemon.http
            ballast = disk / "ballast"
            with contextlib.suppress(OSError), ballast.open("wb") as file:
                while file.tell() < FILE_SYSTEM_BYTES:
                    file.write(bytes(1 << 20))
            refused(client, WRITTEN, numbers(10, 50_000))
            raised(daemon, "disk-full")
            yield daemon.http
            ballast.unlink()
            raised(daemon, "disk-full", is_up=False)
            yield daemon.http
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def certificate(folder: Path) -> Stops:
    """A certificate that ends tomorrow is put in the place of a good one."""
    authority = Authority(folder / "ca")
    pair = authority.issue("daemon", days=25)
    settings: Settings = {"tls__cert": str(pair.cert), "tls__key": str(pair.key)}
    with Daemon.start(folder / "d", **settings) as daemon:
        yield daemon.http
        authority.issue("daemon", days=2)
        daemon.process.send_signal(signal.SIGHUP)
        raised(daemon, "certificate")
        yield daemon.http
        authority.issue("daemon", days=25)
        daemon.process.send_signal(signal.SIGHUP)
        raised(daemon, "certificate", is_up=False)
        yield daemon.http


def tokens_not_read(folder: Path) -> Stops:
    """The file of tokens is damaged."""
    tokens = Tokens(folder / "tokens.json")
    tokens.add("root", "*:admin")
    good = tokens.path.read_bytes()
    settings: Settings = {"auth__tokens": str(tokens.path), "auth__open": '["metrics"]'}
    with Daemon.start(folder / "d", **settings) as daemon:
        yield daemon.http
        tokens.path.write_bytes(good[: len(good) // 2])
        daemon.process.send_signal(signal.SIGHUP)
        raised(daemon, "tokens-not-read")
        yield daemon.http
        tokens.path.write_bytes(good)
        daemon.process.send_signal(signal.SIGHUP)
        raised(daemon, "tokens-not-read", is_up=False)
        yield daemon.http


def loop_stalled(folder: Path) -> Stops:
    """The process stands still for some seconds."""
    with Daemon.start(folder / "d") as daemon:
        yield daemon.http
        daemon.process.send_signal(signal.SIGSTOP)
        time.sleep(7.0)  # that is the fault
        daemon.process.send_signal(signal.SIGCONT)
        raised(daemon, "loop-stalled")
        yield daemon.http
        raised(daemon, "loop-stalled", is_up=False)
        yield daemon.http


def down(folder: Path) -> Stops:
    """The process is killed."""
    with Daemon.start(folder / "d") as daemon:
        yield daemon.http
        daemon.kill()
        yield None
        with daemon.again() as anew:
            yield anew.http


def fenced(folder: Path) -> Stops:
    """Another process takes the id, and the first one ends as soon as it commits."""
    store = f"file://{folder / 'store'}"
    with Daemon.start(folder / "d", store=store, persist__max_age="200ms") as daemon:
        yield daemon.http
        with Daemon.start(folder / "e", arguments=("--accept-lost-log",), store=store) as other:
            for client in (fl.connect(other.flight), fl.connect(daemon.flight)):
                with client, contextlib.suppress(*ARROW_AND_FLIGHT):
                    put(client, WRITTEN, numbers(0, 10))
            assert daemon.wait(60.0) == 6
            yield None
            yield other.http


REPORT = {"origin": "db", "namespace": "s", "source": "h:5432/d", "slot": "ingester"}
TABLE = {"table": "t", "source": "public.t", "since": "2026-11-21T09:05:30Z"}


def replication(folder: Path) -> Stops:
    """A replicator tells of a table that it does not follow, and of much log for its slot."""
    with Daemon.start(folder / "d") as daemon, fl.connect(daemon.flight) as client:

        def tell(phase: str, slot_bytes: int) -> None:
            table = TABLE | {"phase": phase}
            body = REPORT | {"slot_bytes": slot_bytes, "tables": [table], "reporter": "r1"}
            act(client, "replication_report", **body)

        tell("following", 0)
        yield daemon.http
        tell("set_aside", SLOT_BYTES)
        raised(daemon, "table-set-aside", "slot-holds-log")
        yield daemon.http
        tell("following", 0)
        raised(daemon, "table-set-aside", "slot-holds-log", is_up=False)
        tell("following", 0)
        yield daemon.http


def replicator_unheard(folder: Path) -> Stops:
    """A replicator says nothing any more."""
    with Daemon.start(folder / "d") as daemon, fl.connect(daemon.flight) as client:
        act(client, "replication_report", **REPORT, reporter="r1")
        yield daemon.http
        raised(daemon, "replicator-unheard")
        yield daemon.http
        act(client, "replication_report", **REPORT, reporter="r1")
        raised(daemon, "replicator-unheard", is_up=False)
        act(client, "replication_report", **REPORT, reporter="r1")
        yield daemon.http


def transformer_hangs(folder: Path) -> Stops:
    """A transformer does not come back."""
    settings: Settings = {"transform__allowed": MODULE, "transform__timeout": "1s"}
    with Daemon.start(folder / "d", **settings) as daemon, fl.connect(daemon.flight) as client:
        schema = pa.schema({"i": pa.int64(), "until": pa.string()})
        create(client, ("tr", "t"), schema, transformers=[f"{MODULE}:Waits"])
        yield daemon.http
        released = folder / "released"
        with contextlib.suppress(fl.FlightTimedOutError):
            put(client, ("tr", "t"), numbers(0, 1, until=pa.array([str(released)])))
        raised(daemon, "transformer-hangs")
        yield daemon.http
        released.touch()
        raised(daemon, "transformer-hangs", is_up=False)
        yield daemon.http


def push_stuck(folder: Path) -> Stops:
    """A push is under way, and nobody has told of it for long."""
    with Daemon.start(folder / "d") as daemon:
        yield daemon.http
        root = daemon.data_dir / "store"
        path = root / status_path("nightly-1")
        open_store(f"file://{root}").put(status_path("nightly-1"), a_status())
        at = time.time() - timedelta(minutes=5).total_seconds()
        os.utime(path, (at, at))
        raised(daemon, "push-stuck")
        yield daemon.http
        path.unlink()
        raised(daemon, "push-stuck", is_up=False)
        yield daemon.http


def not_adopted(folder: Path) -> Stops:
    """A daemon looks after a log, which turns out to be another store's."""
    settings: Settings = {"recovery__adopt": str(folder / "other"), "recovery__adopt_after": 0}
    with Daemon.start(folder / "d", **settings) as daemon:
        yield daemon.http
        with Daemon.start(folder / "other", id="other", persist__max_age="1h") as other:
            with fl.connect(other.flight) as client:
                put(client, ("n", "t"), numbers(0, 5))
            other.kill()
        raised(daemon, "not-adopted")
        yield daemon.http
        (folder / "other" / "wal").rename(folder / "elsewhere")
        raised(daemon, "not-adopted", is_up=False)
        yield daemon.http


def a_status() -> bytes:
    """The status of a push that has begun."""
    from ingester.lifecycle.push_status import encode_push_status
    from tests.daemon.test_push_watch import a_push

    return encode_push_status(a_push("nightly-1"))


def internal_error(folder: Path) -> Stops:
    """A data file is damaged, and asked for."""
    with Daemon.start(folder / "d") as daemon, fl.connect(daemon.flight) as client:
        put(client, WRITTEN, numbers(0, 10))
        act(client, "persist")
        yield daemon.http
        (file,) = (daemon.data_dir / "store").glob("s/t/**/*.parquet")
        good = file.read_bytes()
        file.write_bytes(bytes(len(good)))
        ticket = fl.Ticket(json.dumps({"namespace": "s", "table": "t"}).encode())
        with contextlib.suppress(*ARROW_AND_FLIGHT):
            client.do_get(ticket).read_all()
        yield daemon.http
        file.write_bytes(good)
        yield daemon.http


def _fault(run: Callable[[Path], Stops], *alerts: str, slow: bool = False) -> tuple[str, Fault]:
    return run.__name__, Fault(run, frozenset(alerts), slow)


_AWAY = ("IngesterStoreAway", "IngesterPersistFailing")
FAULTS: dict[str, Fault] = dict(
    [
        _fault(store_away, *_AWAY),
        _fault(oldest_row, *_AWAY, "IngesterOldestRow", slow=True),
        _fault(saturated, *_AWAY, "IngesterSaturated", slow=True),
        _fault(memory_high, *_AWAY, "IngesterMemoryHigh", slow=True),
        _fault(disk_full, "IngesterDiskFull", slow=True),
        _fault(certificate, "IngesterCertificate", slow=True),
        _fault(tokens_not_read, "IngesterTokensNotRead", slow=True),
        _fault(loop_stalled, "IngesterLoopStalled", slow=True),
        _fault(down, "IngesterDown", slow=True),
        _fault(fenced, "IngesterDown", slow=True),
        _fault(
            replication,
            "IngesterReplicationTableSetAside",
            "IngesterReplicationSlotLarge",
            slow=True,
        ),
        _fault(replicator_unheard, "IngesterReplicationUnheard", slow=True),
        _fault(transformer_hangs, "IngesterTransformerHangs", slow=True),
        _fault(push_stuck, "IngesterPushStuck", slow=True),
        _fault(not_adopted, "IngesterNotAdopted", slow=True),
        _fault(internal_error, "IngesterInternalErrors"),
    ]
)
