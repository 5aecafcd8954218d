"""Faults of the process, its certificate and its tokens."""

from __future__ import annotations

import contextlib
import signal
import time

from tests.alerts.fault_steps import WRITTEN, Settings, Stops, raised, raised_and_cleared
from tests.alerts.site import Site
from tests.drivers.wire import ARROW_AND_FLIGHT, act, numbers, put


def certificate(site: Site) -> Stops:
    """A good certificate is replaced by one that expires in two days."""
    assert site.secured is not None
    pair = site.secured.pair
    with site.start() as daemon:
        yield daemon.http
        site.secured.authority.issue("daemon", days=2)
        daemon.process.send_signal(signal.SIGHUP)
        raised(daemon, "certificate")
        # The operator has received it from the authority by then.
        made = site.secured.authority.issue("new", days=90)
        made.cert.rename(pair.cert.with_name("new.crt"))
        yield daemon.http
        raised(daemon, "certificate", is_up=False)
        yield daemon.http


def tokens_not_read(site: Site) -> Stops:
    """The token file is damaged; a copy of it exists elsewhere."""
    with site.start() as daemon:
        yield daemon.http
        path = site.secrets / "tokens.json"
        good = path.read_bytes()
        path.with_name("tokens.json.saved").write_bytes(good)
        path.write_bytes(good[: len(good) // 2])
        daemon.process.send_signal(signal.SIGHUP)
        yield from raised_and_cleared(daemon, "tokens-not-read")


def loop_stalled(site: Site) -> Stops:
    """The process is stopped for some seconds."""
    with site.start() as daemon:
        yield daemon.http
        daemon.process.send_signal(signal.SIGSTOP)
        time.sleep(7.0)  # this is the fault
        daemon.process.send_signal(signal.SIGCONT)
        yield from raised_and_cleared(daemon, "loop-stalled")


def down(site: Site) -> Stops:
    """The process is killed."""
    with site.start() as daemon:
        yield daemon.http
        daemon.kill()
        yield None
        yield daemon.http


def fenced(site: Site) -> Stops:
    """Another process takes the id, and the first one ends at its next commit."""
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


def not_adopted(site: Site) -> Stops:
    """A daemon is to adopt a log that belongs to another store."""
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
        yield from raised_and_cleared(daemon, "not-adopted")
