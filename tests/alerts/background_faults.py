"""Faults of the daemon's other tasks: replicators, transformers, pushes."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from datetime import timedelta

import pyarrow as pa
import pyarrow.flight as fl

from ingester.pushes.hooks import wait
from ingester.pushes.leading import push_status
from ingester.pushes.record import Patience, PushRecord
from ingester.pushes.tasks import Rules
from ingester.reports.pushes import (
    KeptIn,
    Leader,
    PushStatus,
    encode_push_status,
    status_path,
)
from persist.store import open_store
from tests.alerts.fault_steps import WRITTEN, Settings, Stops, raised, raised_and_cleared
from tests.alerts.site import Site
from tests.drivers.wire import act, create, numbers, put
from tests.pushes.realm import Job, in_folders, some_rows
from tests.pushes.world import PATIENCE
from tests.write.transform.acme import MODULE

REPORT = {"origin": "db", "namespace": "shop", "source": "h:5432/d", "slot": "ingester"}
SLOT_BYTES = 21 << 30
TABLE = {"table": "t", "source": "public.t", "since": "2026-11-21T09:05:30Z"}
WHY = {"reason": "it has no primary key", "helps": ["ALTER TABLE public.t ADD PRIMARY KEY (id)"]}


def replication(site: Site) -> Stops:
    """A replicator reports a table that it does not follow, and much log retained by its slot."""
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


def silent_replicator(site: Site) -> Stops:
    """A replicator stops reporting."""
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
    """A transformer does not return."""
    settings: Settings = {"transform__allowed": MODULE, "transform__timeout": "1s"}
    with site.start(**settings) as daemon, site.connect(daemon) as client:
        schema = pa.schema({"i": pa.int64(), "until": pa.string()})
        create(client, WRITTEN, schema, transformers=[f"{MODULE}:Waits"])
        yield daemon.http
        never = site.folder / "never"
        with contextlib.suppress(fl.FlightTimedOutError):
            put(client, WRITTEN, numbers(0, 1, until=pa.array([str(never)])))
        yield from raised_and_cleared(daemon, "transformer-hangs")


def push_stuck(site: Site) -> Stops:
    """A push waits before its swap, and its coordinator ended five minutes ago."""
    with site.start() as daemon:
        yield daemon.http
        status = begin_push(site, "nightly-1")
        path = site.lake / status_path("nightly-1")
        open_store(f"file://{site.lake}").put(status_path("nightly-1"), encode_push_status(status))
        at = time.time() - timedelta(minutes=5).total_seconds()
        os.utime(path, (at, at))
        yield from raised_and_cleared(daemon, "push-stuck")


def begin_push(site: Site, push_id: str) -> PushStatus:
    """Begin a push, coordinate it until its data is written, and return its position."""
    config = f'[regions.lake]\nurl = "file://{site.lake}"\n'
    (site.secrets / "pushes.toml").write_text(config)
    realm, rows, stop = in_folders(site.folder, ("lake",)), some_rows(0, 100), threading.Event()
    realm.rules = Rules(patience=Patience(*PATIENCE._replace(interval=timedelta(seconds=0.01))))
    realm.panel.say("pre_version_swap", *[wait("its driver")] * 1000, region="lake")
    job = Job(realm, rows)

    def hear(record: PushRecord) -> None:
        job.hear(record)
        step = record.region("lake").step
        if step is not None and step.asked:
            stop.set()

    record = realm.lead(realm.begin(rows, push_id), hear, stop=stop)
    kept_in = KeptIn(region="lake", url=f"file://{site.lake}")
    return push_status(record, kept_in, Leader(controller="batch-7", at=record.since))
