"""The copies that wait are made, one after another, beside the stream.

    orders that are due ─▶ a snapshot for all of them ─▶ table by table: copied, switched, told
                                                      └▶ failed: set aside, or tried again later

Law of this file: one round at a time, in a thread of its own. While a round runs, and until the
stream has begun anew after it, the slot stays where it was when the round began: what came since is
read again for the tables that were copied.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ingester.client import Client, ClientError, InvalidRequest
from ingester.postgres.catalog import read_publication, read_server, read_tables
from ingester.postgres.connection import SourceFailed
from ingester.postgres.looking import shape_of, wanted_of
from ingester.postgres.options import Options
from ingester.postgres.planning import Wanted
from ingester.postgres.snapshot import ChangedMeanwhile, Snapshot
from ingester.postgres.statement_thread import Stopped
from ingester.postgres.states import BadState, Place, TableState, encode_state, partition_of
from ingester.postgres.table_copy import copy_table
from ingester.postgres.tables import Tables, now
from ingester.postgres.types import ValueNotKept


class Copying(NamedTuple):
    """The table that is being copied, and how far it is."""

    target: str
    rows: int
    nbytes: int
    rows_total: int | None


@dataclass
class Copier:
    """Makes the copies that are due.

    Args:
        endpoint: of the daemon.
        say: told what happens, in a line.
        stopped: asked whether to end.
    """

    options: Options
    tables: Tables
    client: Client
    say: Callable[[str], None]
    stopped: Callable[[], bool]
    progress: Copying | None = None
    waits: str = ""
    _thread: threading.Thread | None = field(default=None, repr=False)
    _done: int = 0
    """Counted by the thread alone; ``_taken`` by whoever takes: no count is lost between them."""
    _taken: int = 0
    _failure: BaseException | None = None
    _at: str | None = None
    """The table whose copy was begun last in this round."""

    @property
    def busy(self) -> bool:
        """Whether a round is under way."""
        return self._thread is not None and self._thread.is_alive()

    def begin(self, place: Place) -> bool:
        """Begin a round if a copy is due and none is under way; return whether it did."""
        if self.busy or not (due := self.tables.due()):
            return False
        self._thread = threading.Thread(
            target=self._run, args=(place, due), name="postgres-copy", daemon=True
        )
        self._thread.start()
        return True

    def take_done(self) -> int:
        """Return how many tables were copied since the last call.

        Raises:
            BaseException: what has ended a round for good.
        """
        done = self._done - self._taken
        self._taken += done
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        return done

    def join(self, timeout_s: float | None = None) -> None:
        """Wait for the round to end."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _run(self, place: Place, due: Sequence[str]) -> None:
        import psycopg2

        self._at = None
        try:
            self._round(place, due)
        except Stopped:
            pass
        except (psycopg2.OperationalError, ClientError) as exc:
            self._again(due, f"trying again: {' '.join(str(exc).split())}")
        except SourceFailed as exc:
            self._again(due, f"no copy for now: {exc}")
        except BaseException as exc:
            self._failure = exc
        finally:
            self.progress, self.waits = None, ""

    def _again(self, due: Sequence[str], why: str) -> None:
        if self.stopped():
            return
        self.say(why)
        # The next round begins without the one that has ended this; it may do so each time.
        for target in due if self._at is None else (self._at,):
            self.tables.order_failed(target)

    def _waiting(self, text: str) -> None:
        if text and text != self.waits:
            self.say(text)
        self.waits = text

    def _round(self, place: Place, due: Sequence[str]) -> None:
        options = self.options
        name = f"{options.slot[:40]}_copy"
        with Snapshot.take(options.dsn, name, self.stopped, self._waiting) as snapshot:
            wanted = self._wanted(snapshot.connection)
            for target in due:
                if self.stopped():
                    return
                table = wanted.get(target)
                if table is None or table.hindrance or target not in self.tables.orders:
                    # The next look says what has become of it.
                    self.tables.order_failed(target)
                    continue
                self._copy(snapshot, place, table)

    def _wanted(self, connection: Any) -> dict[str, Wanted]:
        publication = read_publication(connection, self.options.publication)
        tables = read_tables(connection, self.options.publication)
        found = wanted_of(tables, read_server(connection), publication, self.options)
        return {each.target: each for each in found}

    def _copy(self, snapshot: Snapshot, place: Place, table: Wanted) -> None:
        target, facts = table.target, table.facts
        state = TableState(
            place=place,
            publication=self.options.publication,
            facts=facts,
            columns=table.columns,
            from_lsn=snapshot.lsn,
            since=now(),
        )

        def told(rows: int, nbytes: int, total: int | None) -> None:
            self.progress = Copying(target, rows, nbytes, total)

        self._at = target
        told(0, 0, None)
        began = time.monotonic()
        shape = shape_of(target, facts, table.columns)
        try:
            copied = copy_table(
                snapshot,
                facts,
                shape,
                self.client,
                self.tables.namespace,
                partition_of(self.tables.origin),
                lambda: encode_state(state),
                told,
            )
        except ValueNotKept as exc:
            helps = ("correct the value, or name a policy: --values",)
            self._failed(target, began, str(exc), helps)
        except InvalidRequest as exc:
            self._failed(target, began, f"the daemon does not take it: {exc}")
        except BadState as exc:
            self._failed(target, began, str(exc))
        except SourceFailed as exc:
            self._failed(target, began, str(exc), exc.helps)
        except ChangedMeanwhile as exc:
            self.say(f"{exc}")
            self.tables.order_failed(target)
        else:
            self.tables.copied(target, state)
            self._done += 1
            self.say(f"copied {copied.rows} rows of {facts.full_name}")
        finally:
            self.progress = None

    def _failed(self, target: str, began: float, reason: str, helps: tuple[str, ...] = ()) -> None:
        known = self.tables.aside.get(target)
        if known is None or known.reason != reason:
            self.say(f"table {target} is set aside: {reason}")
        self.tables.set_aside(target, reason, helps)
        self.tables.order_failed(target, time.monotonic() - began)
