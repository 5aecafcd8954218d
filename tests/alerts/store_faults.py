"""Faults of the store, of disks, and of the files on them."""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.flight as fl

from tests.alerts.fault_steps import WRITTEN, Stops, raised_and_cleared, refused
from tests.alerts.site import Site
from tests.crash.worlds import FILE_SYSTEM_BYTES, mount
from tests.drivers.wire import ARROW_AND_FLIGHT, act, numbers, put


def unmount(folder: Path) -> None:
    """Replace a folder by an empty mount point. ``mount`` brings it back."""
    folder.rename(folder.with_name(folder.name + ".away"))
    folder.mkdir()


def _without_store(
    site: Site,
    settings: dict[str, Any],
    write: Callable[[fl.FlightClient], object],
    *alarms: str,
) -> Stops:
    """Write rows while the store is unreachable, until its alarms and these are raised."""
    expected = (*alarms, "store-away", "persist-failing")
    with site.start(**settings) as daemon, site.connect(daemon) as client:
        put(client, WRITTEN, numbers(0, 10))
        yield daemon.http
        unmount(site.lake)
        write(client)
        yield from raised_and_cleared(daemon, *expected)


def unreachable_store(site: Site) -> Stops:
    """The store is unreachable while rows are to be flushed."""
    settings = {"persist__max_age": "500ms"}
    return _without_store(site, settings, lambda client: put(client, WRITTEN, numbers(10, 10)))


def oldest_row(site: Site) -> Stops:
    """The same for longer than rows may stay unflushed: a minute, and twice ``persist.max_age``."""
    settings = {"persist__max_age": "500ms"}
    return _without_store(
        site, settings, lambda client: put(client, WRITTEN, numbers(10, 10)), "oldest-row"
    )


def store_log_stalled(site: Site) -> Stops:
    """The store is unreachable while a batch waits for its log object."""
    with site.start(ack="store") as daemon, site.connect(daemon) as client:
        put(client, WRITTEN, numbers(0, 10))
        act(client, "persist")
        yield daemon.http
        unmount(site.lake)
        waiting = threading.Thread(target=put, args=(client, WRITTEN, numbers(10, 10)))
        waiting.start()
        yield from raised_and_cleared(daemon, "store-log-stalled", "store-away")
        waiting.join(60)
        assert not waiting.is_alive(), "the batch was not acknowledged afterwards"


def saturated(site: Site) -> Stops:
    """Rows arrive, and none is flushed to a file."""
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
    """Rows arrive until no memory remains."""
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
    """The log's disk is full: a foreign file takes all of it."""
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
            yield from raised_and_cleared(daemon, "disk-full")
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def damaged_file(site: Site) -> Stops:
    """A data file is damaged and then read; a backup of it exists elsewhere."""
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
