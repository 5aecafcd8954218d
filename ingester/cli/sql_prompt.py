"""The prompt of ``sql``: statements of several lines, each ended by a semicolon.

Ctrl-C ends the running query, or drops what was typed; Ctrl-D, ``quit`` and ``exit`` leave. Lines
are edited by readline, if Python has it: Tab completes names of tables and columns, and the history
is ``~/.ingester_history``, which only its owner may read.
"""

import code
import contextlib
import os
import re
import sys
from functools import cached_property
from pathlib import Path
from typing import Any

from ingester.client import Client, ClientError
from ingester.secret_texts import masked
from ingester.shown_text import has_hidden

from .exits import CommandFailed
from .printing import print_line
from .sql_answers import SqlAnswers, divided

readline: Any
try:
    import readline
except ImportError:  # some builds of Python lack it
    readline = None

HISTORY_LINES = 2000
MOST_TABLES = 500
"""The tables whose columns are completed."""


class SqlPrompt(code.InteractiveConsole):
    """Reads statements from a terminal and prints their answers."""

    def __init__(self, client: Client, answers: SqlAnswers) -> None:
        super().__init__()
        self._client = client
        self._answers = answers
        self._history = Path("~/.ingester_history").expanduser()

    def run(self) -> None:
        """Read and answer until the end of the input."""
        self._set_up_editing()
        sys.ps1, sys.ps2 = "ingester=> ", "ingester-> "
        self.interact(f"{self._client.endpoint}: end statements with ; and leave by Ctrl-D", "")

    def runsource(self, source: str, filename: str = "", symbol: str = "") -> bool:
        """Run the statements in a text; True if the last one needs further lines."""
        if source.strip(" ;").lower() in ("quit", "exit", "\\q"):
            raise SystemExit
        statements, rest = divided(f"{source}\n")
        if rest:
            return True
        self._remember(source)
        try:
            for statement in statements:
                rows = self._answers.print(self._client, statement)
                if self._answers.format == "table":
                    print_line(f"({rows:,} row{'s' * (rows != 1)})", sys.stderr)
        except KeyboardInterrupt:
            print_line("cancelled", sys.stderr)
        except (ClientError, CommandFailed) as exc:
            for line in masked(str(exc)).splitlines():
                print_line(line, sys.stderr)
        return False

    # ------------------------------------------------------------------------------------- editing

    @cached_property
    def _names(self) -> list[str]:
        """Tables and columns as SQL writes them; nothing if the daemon does not answer."""
        names = set[str]()
        with contextlib.suppress(ClientError):
            for at, each in enumerate(self._client.tables()):
                table = as_name(each.table)
                names |= {table, f"{as_name(each.namespace)}.{table}"}
                if at < MOST_TABLES:
                    schema = self._client.schema(each.namespace, each.table)
                    names |= set(map(as_name, schema.names))
        return sorted(name for name in names if not has_hidden(name))

    def complete(self, text: str, state: int) -> str | None:
        """The ``state``-th completion of a word, as readline asks for it."""
        found = [name for name in self._names if name.lower().startswith(text.lower())]
        return found[state] if state < len(found) else None

    def _set_up_editing(self) -> None:
        if readline is None:
            return
        readline.set_completer(self.complete)
        readline.set_completer_delims(" \t\n(),;=<>+*/|")
        is_libedit = "libedit" in (readline.__doc__ or "")
        readline.parse_and_bind("bind ^I rl_complete" if is_libedit else "tab: complete")
        readline.set_auto_history(False)
        readline.set_history_length(HISTORY_LINES)
        with contextlib.suppress(OSError):
            os.close(os.open(self._history, os.O_CREAT | os.O_RDONLY, 0o600))
            readline.read_history_file(self._history)

    def _remember(self, text: str) -> None:
        """Add statements to the history: one entry, unless a line has a comment."""
        if readline is None or not text.strip():
            return
        lines = [line for line in text.splitlines() if line.strip()]
        entries = lines if "--" in text else [" ".join(lines)]
        for entry in entries:
            readline.add_history(entry)
        with contextlib.suppress(OSError):
            readline.append_history_file(len(entries), self._history)


def as_name(text: str) -> str:
    """A name as SQL writes it: quoted if it has to be."""
    if re.fullmatch(r"[a-z_][a-z0-9_]*", text):
        return text
    return '"' + text.replace('"', '""') + '"'
