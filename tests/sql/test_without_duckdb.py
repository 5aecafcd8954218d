"""A daemon without the extra ``sql`` runs, and says what to install when it is asked in SQL."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from tests.drivers.daemon import Daemon
from tests.drivers.sql import ask
from tests.drivers.wire import put, rows

HIDES_DUCKDB = "import sys\nsys.modules['duckdb'] = None\n"


def test_a_daemon_without_duckdb_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(HIDES_DUCKDB)
    # The second variable makes the daemon an interpreter of its own, which reads the file.
    environment = {"PYTHONPATH": str(tmp_path), "PYTHONNOUSERSITE": "1"}
    with (
        Daemon.start(tmp_path / "data", environment=environment) as daemon,
        fl.connect(daemon.flight) as client,
    ):
        put(client, ("shop", "t"), pa.record_batch({"i": [1]}))
        with pytest.raises(pa.ArrowNotImplementedError, match=r"pip install '\.\[sql\]'"):
            ask(client, "SELECT 1")
        assert rows(client, ("shop", "t")) == [1]
