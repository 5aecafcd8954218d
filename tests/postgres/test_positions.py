"""A session's positions depend on the daemon process."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingester.client import Client, Restarted
from ingester.postgres.positions import Positions
from ingester.postgres.slot import FoundSlot
from tests.client.test_sync_stream import OlderDaemon
from tests.drivers.waiting import until
from tests.postgres.replicating import steady_daemon

SLOT = FoundSlot(confirmed_lsn=0, lost=False, active_pid=None)


def test_who_finds_by_asking_that_the_daemon_has_restarted_counts_on_the_one_before(
    tmp_path: Path,
) -> None:
    daemon = steady_daemon(tmp_path / "d")
    try:
        with Client(daemon.flight) as client:
            before = Positions.begin(client, "shop", "pg", SLOT)
            assert before.of_one_process(Positions.begin(client, "shop", "pg", SLOT))
            daemon.kill()
            daemon = daemon.again()
            until(lambda: client.origins() == [], "the daemon", 30)
            with pytest.raises(Restarted):
                before.ask()
            assert not before.of_one_process(Positions.begin(client, "shop", "pg", SLOT))
    finally:
        daemon.kill()


def test_two_daemons_of_one_epoch_are_two_processes() -> None:
    """Rows in the log of one daemon are missing in the other."""
    with OlderDaemon() as one, OlderDaemon() as two:
        daemons = {f"grpc://127.0.0.1:{each.port}": each for each in (one, two)}
        with Client(list(daemons)) as client:
            before = Positions.begin(client, "shop", "pg", SLOT)
            for table in ("a", "b", "c", "d"):
                # A session stays at one daemon, even if the origin prefers another.
                assert before.catching_up_of(table).stream.process == before.process
            endpoint, epoch = before.process
            daemons[endpoint].shutdown()
            after = Positions.begin(client, "shop", "pg", SLOT)
            assert after.process[1] == epoch
            assert not before.of_one_process(after)
