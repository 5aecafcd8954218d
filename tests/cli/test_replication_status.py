"""``ingester replicate status``: from reports, otherwise from states, and its exit code."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pyarrow as pa

from ingester.client import Client
from ingester.postgres.facts import TableFacts
from ingester.postgres.states import ReplicaState, SlotPlace, encode_state
from ingester.reports.replications import ReplicationReport, TableReport
from tests.cli.conftest import Run, check_refused
from tests.drivers.daemon import Daemon

SCHEMA = pa.schema([("id", pa.int64())])
AT = "2026-11-26T08:10:00Z"


def send_report(served: Daemon, namespace: str, *tables: TableReport, **more: Any) -> None:
    fields = {"origin": f"postgres-{namespace}", "source": "db/shop", "slot": "ingester", **more}
    report = ReplicationReport(namespace=namespace, tables=tables, **fields)
    with Client(served.flight) as client:
        client.action("replication_report", msgspec.to_builtins(report))


def state(name: str, **more: Any) -> ReplicaState:
    facts = TableFacts(1, "public", name, "r", "d", ("id",), False, (), 1)
    return ReplicaState(SlotPlace("743", "shop", "ingester", 17), "ingester", facts, (), 17, **more)


def following(number: int) -> TableReport:
    return TableReport(table=f"t{number}", source=f"public.t{number}", phase="following", since=AT)


def test_a_report_is_shown_and_a_table_set_aside_gives_exit_code_1(
    run: Run, served: Daemon, namespace: str
) -> None:
    tables = [following(number) for number in range(30)]
    send_report(served, namespace, *tables, lag_s=0.4, lag_bytes=4096, slot_bytes=1 << 20)
    well = run("replicate", "status", namespace)
    shown = well.stdout.decode()
    assert well.returncode == 0, well.stderr
    assert f"{namespace} from db/shop: running" in shown
    assert "lag 0.4 s, 4.0 KiB" in shown and "the source keeps 1.0 MiB of log" in shown
    assert "tables: 30 following" in shown and "and 10 following" in shown

    notes = TableReport(
        table="notes",
        source='public."notes\x1b[2J"',
        phase="set_aside",
        reason="it has no primary key",
        helps=("ALTER TABLE public.notes ADD PRIMARY KEY (id)",),
    )
    orders = TableReport(
        table="orders", source="public.orders", phase="copying", rows_done=250, rows_total=1000
    )
    send_report(served, namespace, *tables, notes, orders)
    aside = run("replicate", "status", namespace)
    lines = aside.stdout.decode().splitlines()
    assert aside.returncode == 1
    assert "set aside" in next(line for line in lines if line.startswith("notes"))
    assert any("to do: ALTER TABLE public.notes ADD PRIMARY KEY (id)" in line for line in lines)
    assert any("copying: 250 of about 1,000 rows" in line for line in lines)
    assert b"\x1b" not in aside.stdout
    told = json.loads(run("replicate", "status", namespace, "--json").stdout)["replications"]
    assert [len(each["tables"]) for each in told] == [32]
    assert f"postgres-{namespace}" in run("status").stdout.decode()


def test_without_a_report_the_tables_states_are_shown_with_exit_code_1(
    run: Run, served: Daemon, namespace: str
) -> None:
    states = {
        "orders": encode_state(state("orders")),
        "notes": encode_state(state("notes", phase="set_aside", reason="no primary key", since=AT)),
        "strange": b"\xff no state",
    }
    with Client(served.flight) as client:
        for table, content in states.items():
            client.create_table(namespace, table, SCHEMA, primary_key=["id"])
            client.put_checkpoint(namespace, table, "postgres:pg", content)
        client.put_checkpoint(namespace, "orders", "topic-0", b"another's")
    shown = run("replicate", "status", namespace)
    lines = shown.stdout.decode().splitlines()
    assert shown.returncode == 1
    assert lines[0] == f"{namespace} from database shop, system 743: not running"
    assert "tables: 1 set aside, 1 following, 1 unknown" in shown.stdout.decode()
    assert "no primary key" in next(line for line in lines if line.startswith("notes"))
    assert "this version cannot read" in next(line for line in lines if line.startswith("strange"))

    # A replicator's report takes precedence; another origin's states are shown as well.
    send_report(served, namespace, following(1), origin="pg")
    assert run("replicate", "status", namespace, "--origin", "pg").returncode == 0
    send_report(
        served, namespace, following(1), origin="pg", state="ended", reason="the slot is lost"
    )
    ended = run("replicate", "status", namespace)
    assert ended.returncode == 1
    assert "ended: the slot is lost" in ended.stdout.decode()


def test_a_namespace_without_replication_is_one_line(run: Run, namespace: str) -> None:
    check_refused(run("replicate", "status", namespace), 1, "no replication into namespace")
    failed = run("replicate", "status", namespace, "--origin", "o")
    check_refused(failed, 1, "as origin 'o': no replicator reports")
