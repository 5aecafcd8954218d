"""A session's positions depend on the daemon process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ingester.client import Client, Restarted, SyncAnswer
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


def test_the_slot_is_not_told_what_is_only_in_log_objects() -> None:
    """Another daemon of the store would not find it, and a start there would refuse the slot."""
    with OlderDaemon() as one, Client(f"grpc://127.0.0.1:{one.port}") as client:
        positions = Positions.begin(client, "shop", "pg", SLOT, "store")
        assert positions.catching_up_of("t").stream.ack == "store"
        positions.read_upto = 9
        told: dict[str, Any] = {"accepted": True, "memory_sequence": 9, "durable_sequence": 9}
        positions.main.note(SyncAnswer(**told, files_sequence=4, ack="store"))
        assert not positions.settled
        assert positions.confirmable(None) == 4
        positions.main.note(SyncAnswer(**told, files_sequence=9, ack="store"))
        assert positions.confirmable(None) == 9
