"""The status of a running replicator: each table's phase, and the reason of its end."""

from __future__ import annotations

import urllib.request
from pathlib import Path
from typing import Any

from ingester.client import Client
from tests.drivers.daemon import Daemon
from tests.drivers.waiting import until
from tests.postgres.cluster import Cluster, serve_or_skip
from tests.postgres.replicating import replicating


def seen(daemon: Daemon, namespace: str) -> dict[str, Any]:
    """Return the replication into a namespace with its tables by name; empty if none exists yet."""
    with Client(daemon.flight) as client:
        found = client.status_list("replications")
    for each in found:
        if each["namespace"] == namespace:
            return {**each, "tables": {table["table"]: table for table in each["tables"]}}
    return {}


def phases(daemon: Daemon, namespace: str) -> dict[str, str]:
    return {name: each["phase"] for name, each in seen(daemon, namespace).get("tables", {}).items()}


def kept(cluster: Cluster) -> int:
    """Return how many bytes of log the server keeps for the slot."""
    [(nbytes,)] = cluster.run(
        "SELECT (pg_current_wal_lsn() - restart_lsn)::int8 FROM pg_replication_slots"
        " WHERE NOT temporary"
    )
    return int(nbytes)


def test_each_table_is_seen_in_its_phase_and_why_the_replicator_has_ended(
    tmp_path: Path, shared: Daemon
) -> None:
    namespace = "watched"
    server = serve_or_skip(tmp_path / "postgres")
    with server as cluster:
        cluster.run(
            "CREATE TABLE orders (id int PRIMARY KEY)",
            "INSERT INTO orders SELECT generate_series(1, 100)",
            "CREATE TABLE gone (id int PRIMARY KEY)",
            "CREATE TABLE notes (text text)",
        )
        with replicating(cluster.dsn, shared.flight, namespace, tmp_path) as replicator:
            well = {"orders": "following", "gone": "following", "notes": "set_aside"}
            until(lambda: phases(shared, namespace) == well, "tables that follow")
            found = seen(shared, namespace)
            assert (found["alive"], found["state"], found["slot"]) == (
                True,
                "running",
                "ingester",
            )
            assert found["lag_bytes"] is not None and found["position"] != "0/0"
            until(lambda: seen(shared, namespace)["slot_bytes"] >= kept(cluster) > 0, "it")
            notes = found["tables"]["notes"]
            assert "no primary key" in notes["reason"] and notes["since"]
            assert any("ADD PRIMARY KEY" in each for each in notes["helps"])
            with urllib.request.urlopen(f"{shared.http}/metrics") as answer:
                scraped = answer.read().decode().splitlines()
            copied_at = found["tables"]["orders"]["since"]
            cluster.run("INSERT INTO orders SELECT generate_series(101, 110)")
            until(lambda: seen(shared, namespace)["tables"]["orders"]["rows"] == 10, "the changes")
            assert seen(shared, namespace)["tables"]["orders"]["since"] == copied_at != ""
            (line,) = [each for each in scraped if 'table="notes"' in each and namespace in each]
            assert 'phase="set_aside"' in line and line.endswith(" 1.0")

            cluster.run("ALTER TABLE notes ADD id int PRIMARY KEY", "DROP TABLE gone")
            now = {"orders": "following", "gone": "left", "notes": "following"}
            until(lambda: phases(shared, namespace) == now, "what was changed at the source")

            cluster.end()
            until(lambda: seen(shared, namespace)["state"] == "trying_again", "a lost source")
            assert seen(shared, namespace)["reason"]
            replicator.stop()
            ended = seen(shared, namespace)
            assert (ended["alive"], ended["state"], ended["reason"]) == (False, "ended", "")
