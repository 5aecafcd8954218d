"""The programs of ``docs/sql_clients.md`` in Go and Java run as they are printed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.drivers.daemon import Daemon
from tests.flight_sql_clients.page import blocks
from tests.flight_sql_clients.programs import GO, JDBC, need

MODULE = Path(__file__).with_name("go")


def test_the_program_in_go_prints_the_rows(daemon: Daemon, tmp_path: Path) -> None:
    need(GO)
    (text,) = blocks("go", daemon.flight.removeprefix("grpc://"))
    (tmp_path / "main.go").write_text(text)
    for name in ("go.mod", "go.sum"):
        shutil.copy(MODULE / name, tmp_path)
    subprocess.run(["go", "build", "-o", "orders", "."], cwd=tmp_path, check=True)
    ran = subprocess.run([tmp_path / "orders"], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    assert "ann" in ran.stdout


def test_the_program_in_java_prints_the_row(daemon: Daemon, tmp_path: Path) -> None:
    (text,) = blocks("java", daemon.flight.removeprefix("grpc://"))
    source = tmp_path / "Orders.java"
    source.write_text(text)
    opens = "--add-opens=java.base/java.nio=ALL-UNNAMED"
    command = ["java", opens, "-XX:TieredStopAtLevel=1", "-cp", str(need(JDBC)), str(source)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "ann 10.50\n"
