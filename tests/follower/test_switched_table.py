"""A follower whose table is switched to another version: it says so, and begins anew with that."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingester.client import Client
from ingester.client.errors import ClientError
from persist.manifest import switch_version
from persist.store import open_store
from tests.drivers.daemon import Daemon
from tests.drivers.pushing import push_some
from tests.drivers.waiting import until
from tests.follower.memory_sink import Disk, content
from tests.follower.test_real_daemon import equal_soon, follower_of, rows_of, write


def test_a_follower_ends_with_what_happened_and_a_new_one_follows_the_new_version(
    tmp_path: Path,
) -> None:
    disk = Disk()
    with (
        Daemon.start(tmp_path / "d", persist__max_age="1h", manifest__refresh="10ms") as daemon,
        Client(daemon.flight) as client,
    ):
        write(client, "t", 0)
        client.persist()
        store = open_store(f"file://{daemon.data_dir / 'store'}")
        version = push_some(store, ("n", "t"), wanted=lambda add: False)
        with follower_of(daemon, disk, "t") as follower:
            follower.wait_current(10.0)
            switch_version(store, "n", "t", version)
            until(lambda: client.describe("n", "t").table_version == 2, "the daemon follows")
            write(client, "t", 20)
            with pytest.raises(ClientError, match="is at table version 2"):
                follower.run()
        anew = Disk()
        with follower_of(daemon, anew, "t") as follower:
            follower.wait_current(10.0)
            assert content(anew, keyed=False) == rows_of(client, "t")
            client.persist()
            write(client, "t", 40)
            equal_soon(client, anew, "t")
        assert content(anew, keyed=False) == rows_of(client, "t")
        assert len(content(anew, keyed=False)) == 20
