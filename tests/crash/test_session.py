"""How the campaign's writers interpret an answer that ends a stream."""

from __future__ import annotations

from pathlib import Path

import pyarrow.flight as fl
import pytest

from tests.crash.rows import NAMESPACE, TABLES, batch_of
from tests.crash.session import Batch, Session, Unclear
from tests.drivers.daemon import Daemon
from tests.drivers.wire import Stream, writing


def test_superseded_is_the_writers_own_older_call_once_it_has_given_one_up(tmp_path: Path) -> None:
    table = TABLES[0].name
    with Daemon.start(tmp_path / "data") as daemon, fl.connect(daemon.flight) as client:
        for gave_up, told in ((False, fl.FlightUnavailableError), (True, Unclear)):
            origin = f"writer-{gave_up}"
            session = Session(client, origin, gave_up=gave_up)
            assert len(list(session.exchange(table, 0, [Batch(0, 1, 1)]))) == 1
            # It was sent earlier, but is served now.
            rows = batch_of(0, 0, 1)
            with Stream(client, writing((NAMESPACE, table), origin), rows.schema) as late:
                assert late.write(rows, {"sequence": 1})["duplicate"]
                with pytest.raises(told):
                    list(session.exchange(table, 0, [Batch(1, 1, 2)]))
                late.writer.done_writing()
