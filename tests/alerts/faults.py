"""What may befall a daemon, the alerts that it has to fire, and the entries that mend it.

A fault is a generator that stops three times: before it, while it is, and when it is over. Each
time it gives the address of a daemon that is to be scraped, or None where it has none. It stops
when the daemon itself has noticed. Law of this file: no fault mends itself. The operator does
between the second stop and the third, by the runbook alone; but for what is mended ``elsewhere``.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Generator
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.flight as fl

from ingester.lifecycle.push_status import status_path
from persist.store import open_store
from tests.alerts.recorded import scrape
from tests.alerts.site import Site
from tests.crash.worlds import FILE_SYSTEM_BYTES, mount
from tests.drivers.daemon import Daemon
from tests.drivers.waiting import until
from tests.drivers.wire import ARROW_AND_FLIGHT, act, create, numbers, put
from tests.write.transform.acme import MODULE

Stops = Generator[str | None, None, None]
Settings = dict[str, Any]
SLOT_BYTES = 21 << 30
WRITTEN = ("shop", "sales")
"""The table that rows are written to."""


class Fault(NamedTuple):
    """A fault and the alerts that fire while it is.

    Attributes:
        follows: The entries of the runbook that its operator reads, each with the cause that is
            seen there; None where the entry knows one alone.
        secure: Whether it befalls only a daemon with TLS and tokens.
        elsewhere: Whether what helps is done at another machine, and not by commands of an entry.
    """

    run: Callable[[Site], Stops]
    alerts: frozenset[str]
    follows: tuple[tuple[str, str | None], ...] = ()
    secure: bool = False
    elsewhere: bool = False


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


def unmount(folder: Path) -> None:
    """Have a folder away: its mount point is there, and empty. ``mount`` brings it back."""
    folder.rename(folder.with_name(folder.name + ".away"))
    folder.mkdir()


def _without_store(
    site: Site,
    settings: dict[str, Any],
    write: Callable[[fl.FlightClient], object],
    *alarms: str,
) -> Stops:
    """Rows come while the store is away, until these alarms are raised beside those of a store."""
    expected = (*alarms, "store-away", "persist-failing")
    with site.start(**settings) as daemon, site.connect(daemon) as client:
        put(client, WRITTEN, numbers(0, 10))
        yield daemon.http
        unmount(site.lake)
        write(client)
        raised(daemon, *expected)
        yield daemon.http
        raised(daemon, *expected, is_up=False)
        yield daemon.http


def store_away(site: Site) -> Stops:
    """The store is away, and rows are to be persisted."""
    settings = {"persist__max_age": "500ms"}
    return _without_store(site, settings, lambda client: put(client, WRITTEN, numbers(10, 10)))


def oldest_row(site: Site) -> Stops:
    """The same for longer than a row may be in no file: a minute, and twice ``persist.max_age``."""
    settings = {"persist__max_age": "500ms"}
    return _without_store(
        site, settings, lambda client: put(client, WRITTEN, numbers(10, 10)), "oldest-row"
    )


def saturated(site: Site) -> Stops:
    """Rows come, and none gets into a file."""
    settings = {
        "persist__max_age": "1s",
        "persist__queue_bytes": "1MiB",
        "persist__max_partition_bytes": "64KiB",
    }
    too_many = numbers(10, 20_000)
    return _without_store(
        site, settings, lambda client: refused(client, WRITTEN, too_many), "saturated"
    )


def memory_high(site: Site) -> Stops:
    """Rows come until there is no memory for more."""
    settings = {
        "persist__max_age": "1s",
        "memory__limit": "256MiB",
        "memory__high": "8MiB",
        "memory__low": "4MiB",
    }
    too_many = numbers(10, 50_000)
    return _without_store(
        site, settings, lambda client: refused(client, WRITTEN, too_many), "memory-high"
    )


def disk_full(site: Site) -> Stops:
    """The log's disk has no room: somebody's file takes all of it."""
    disk = site.folder / "disk"
    disk.mkdir(parents=True)
    assert mount(disk), "a tmpfs cannot be mounted here, which takes the rights of root"
    site.places["/var/lib"] = disk
    try:
        with (
            site.start("disk/ingester", wal__segment_bytes="4MiB") as daemon,
            site.connect(daemon) as client,
        ):
            put(client, WRITTEN, numbers(0, 10))
            yield daemon.http
            core = disk / "core.4711"
            with contextlib.suppress(OSError), core.open("wb") as file:
                while file.tell() < FILE_SYSTEM_BYTES:
                    file.write(bytes(1 << 20))
            refused(client, WRITTEN, numbers(10, 50_000))
            raised(daemon, "disk-full")
            yield daemon.http
            raised(daemon, "disk-full", is_up=False)
            yield daemon.http
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def certificate(site: Site) -> Stops:
    """A certificate that ends in two days is put in the place of a good one."""
    assert site.secured is not None
    pair = site.secured.pair
    with site.start() as daemon:
        yield daemon.http
        site.secured.authority.issue("daemon", days=2)
        daemon.process.send_signal(signal.SIGHUP)
        raised(daemon, "certificate")
        # What the operator has from the authority by then.
        made = site.secured.authority.issue("new", days=90)
        made.cert.rename(pair.cert.with_name("new.crt"))
        yield daemon.http
        raised(daemon, "certificate", is_up=False)
        yield daemon.http


def tokens_not_read(site: Site) -> Stops:
    """The file of tokens is damaged; a copy of it is kept elsewhere."""
    with site.start() as daemon:
        yield daemon.http
        path = site.secrets / "tokens.json"
        good = path.read_bytes()
        path.with_name("tokens.json.saved").write_bytes(good)
        path.write_bytes(good[: len(good) // 2])
        daemon.process.send_signal(signal.SIGHUP)
        raised(daemon, "tokens-not-read")
        yield daemon.http
        raised(daemon, "tokens-not-read", is_up=False)
        yield daemon.http


def loop_stalled(site: Site) -> Stops:
    """The process stands still for some seconds."""
    with site.start() as daemon:
        yield daemon.http
        daemon.process.send_signal(signal.SIGSTOP)
        time.sleep(7.0)  # that is the fault
        daemon.process.send_signal(signal.SIGCONT)
        raised(daemon, "loop-stalled")
        yield daemon.http
        raised(daemon, "loop-stalled", is_up=False)
        yield daemon.http


def down(site: Site) -> Stops:
    """The process is killed."""
    with site.start() as daemon:
        yield daemon.http
        daemon.kill()
        yield None
        yield daemon.http


def fenced(site: Site) -> Stops:
    """Another process takes the id, and the first one ends as soon as it commits."""
    with site.start(persist__max_age="1h") as daemon, site.connect(daemon) as client:
        put(client, WRITTEN, numbers(0, 10))
        yield daemon.http
        with site.start("e", ("--accept-lost-log",)) as other:
            with site.connect(other) as newer:
                put(newer, WRITTEN, numbers(10, 10))
            with contextlib.suppress(*ARROW_AND_FLIGHT):
                act(client, "persist")
            assert daemon.wait(60.0) == 6
            yield None
            yield other.http


REPORT = {"origin": "db", "namespace": "shop", "source": "h:5432/d", "slot": "ingester"}
TABLE = {"table": "t", "source": "public.t", "since": "2026-11-21T09:05:30Z"}
WHY = {"reason": "it has no primary key", "helps": ["ALTER TABLE public.t ADD PRIMARY KEY (id)"]}


def replication(site: Site) -> Stops:
    """A replicator tells of a table that it does not follow, and of much log for its slot."""
    with site.start() as daemon, site.connect(daemon) as client:

        def tell(phase: str, slot_bytes: int) -> None:
            table = TABLE | {"phase": phase} | (WHY if phase == "set_aside" else {})
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


def replicator_unheard(site: Site) -> Stops:
    """A replicator says nothing any more."""
    with site.start() as daemon, site.connect(daemon) as client:
        act(client, "replication_report", **REPORT, reporter="r1")
        yield daemon.http
        raised(daemon, "replicator-unheard")
        yield daemon.http
        act(client, "replication_report", **REPORT, reporter="r1")
        raised(daemon, "replicator-unheard", is_up=False)
        act(client, "replication_report", **REPORT, reporter="r1")
        yield daemon.http


def transformer_hangs(site: Site) -> Stops:
    """A transformer does not come back."""
    settings: Settings = {"transform__allowed": MODULE, "transform__timeout": "1s"}
    with site.start(**settings) as daemon, site.connect(daemon) as client:
        schema = pa.schema({"i": pa.int64(), "until": pa.string()})
        create(client, WRITTEN, schema, transformers=[f"{MODULE}:Waits"])
        yield daemon.http
        never = site.folder / "never"
        with contextlib.suppress(fl.FlightTimedOutError):
            put(client, WRITTEN, numbers(0, 1, until=pa.array([str(never)])))
        raised(daemon, "transformer-hangs")
        yield daemon.http
        raised(daemon, "transformer-hangs", is_up=False)
        yield daemon.http


def push_stuck(site: Site) -> Stops:
    """A push is under way, and nobody has told of it for long."""
    with site.start() as daemon:
        yield daemon.http
        path = site.lake / status_path("nightly-1")
        open_store(f"file://{site.lake}").put(status_path("nightly-1"), a_status())
        at = time.time() - timedelta(minutes=5).total_seconds()
        os.utime(path, (at, at))
        raised(daemon, "push-stuck")
        yield daemon.http
        path.unlink()
        raised(daemon, "push-stuck", is_up=False)
        yield daemon.http


def not_adopted(site: Site) -> Stops:
    """A daemon looks after a log, which turns out to be another store's."""
    directory = site.folder / "other"
    site.places["/srv/others"] = directory
    settings: Settings = {"recovery__adopt": str(directory), "recovery__adopt_after": 0}
    with site.start(**settings) as daemon:
        yield daemon.http
        store = f"file://{site.folder / 'elsewhere'}"
        with site.start("other", store=store, id="other", persist__max_age="1h") as other:
            with site.connect(other) as client:
                put(client, WRITTEN, numbers(0, 5))
            other.kill()
        raised(daemon, "not-adopted")
        yield daemon.http
        raised(daemon, "not-adopted", is_up=False)
        yield daemon.http


def a_status() -> bytes:
    """The status of a push that has begun."""
    from ingester.lifecycle.push_status import encode_push_status
    from tests.daemon.test_push_watch import a_push

    return encode_push_status(a_push("nightly-1"))


def damaged_file(site: Site) -> Stops:
    """A data file is damaged, and asked for; a back-up of it is kept elsewhere."""
    with site.start() as daemon, site.connect(daemon) as client:
        put(client, WRITTEN, numbers(0, 10))
        act(client, "persist")
        yield daemon.http
        (file,) = site.lake.glob("shop/sales/**/*.parquet")
        good = file.read_bytes()
        backup = site.places["/srv/backup"] = site.folder / "backup"
        saved = backup / file.relative_to(site.lake)
        saved.parent.mkdir(parents=True)
        saved.write_bytes(good)
        file.write_bytes(bytes(len(good)))
        ticket = fl.Ticket(json.dumps({"namespace": "shop", "table": "sales"}).encode())
        with contextlib.suppress(*ARROW_AND_FLIGHT):
            client.do_get(ticket).read_all()
        yield daemon.http
        yield daemon.http


_AWAY = ("IngesterStoreAway", "IngesterPersistFailing")
_LEAD_TO_THE_STORE = (("persist-failing", "The store"), ("store-away", "Not mounted"))
FAULTS: dict[str, Fault] = {
    fault.run.__name__: fault
    for fault in (
        Fault(store_away, frozenset(_AWAY), _LEAD_TO_THE_STORE),
        Fault(
            oldest_row,
            frozenset({*_AWAY, "IngesterOldestRow"}),
            (("oldest-row", "The store"), *_LEAD_TO_THE_STORE),
        ),
        Fault(
            saturated,
            frozenset({*_AWAY, "IngesterSaturated"}),
            (("saturated", "The store"), *_LEAD_TO_THE_STORE),
        ),
        Fault(
            memory_high,
            frozenset({*_AWAY, "IngesterMemoryHigh"}),
            (("memory-high", "The store"), *_LEAD_TO_THE_STORE),
        ),
        Fault(
            disk_full, frozenset({"IngesterDiskFull"}), (("disk-full", "Something else fills it"),)
        ),
        Fault(
            certificate,
            frozenset({"IngesterCertificate"}),
            (("certificate", "It ends"),),
            secure=True,
        ),
        Fault(
            tokens_not_read,
            frozenset({"IngesterTokensNotRead"}),
            (("tokens-not-read", "Damaged"),),
            secure=True,
        ),
        Fault(loop_stalled, frozenset({"IngesterLoopStalled"}), (("loop-stalled", "It goes on"),)),
        Fault(
            down,
            frozenset({"IngesterDown"}),
            (("exit-codes-of-ingester-serve", "Killed"),),
        ),
        Fault(
            fenced,
            frozenset({"IngesterDown"}),
            (("exit-codes-of-ingester-serve", "Code 6"), ("fenced", None)),
        ),
        Fault(
            replication,
            frozenset({"IngesterReplicationTableSetAside", "IngesterReplicationSlotLarge"}),
            (("table-set-aside", None), ("slot-holds-log", None)),
            elsewhere=True,
        ),
        Fault(
            replicator_unheard,
            frozenset({"IngesterReplicationUnheard"}),
            (("replicator-unheard", None),),
            elsewhere=True,
        ),
        Fault(
            transformer_hangs,
            frozenset({"IngesterTransformerHangs"}),
            (("transformer-hangs", "It never returns"),),
        ),
        Fault(
            push_stuck, frozenset({"IngesterPushStuck"}), (("push-stuck", None),), elsewhere=True
        ),
        Fault(
            not_adopted,
            frozenset({"IngesterNotAdopted"}),
            (("not-adopted", "Another store's log"),),
        ),
        Fault(
            damaged_file,
            frozenset({"IngesterInternalErrors"}),
            (("internal-error", "A damaged file"), ("damaged-file", None)),
        ),
    )
}
