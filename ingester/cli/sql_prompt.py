r"""The prompt of ``sql``: statements of several lines, each ended by a semicolon, and commands.

    \d              tables          \timing   show how long each statement takes
    \d SHOP.ORDERS  a table         \q        leave, as Ctrl-D does

Ctrl-C ends the running query, or drops what was typed. Lines are edited by readline, if Python has
it; the history is ``~/.ingester_history``, which only its owner may read.
"""

import contextlib
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from ingester.client import Client, ClientError
from ingester.secret_texts import masked

from .exits import CommandFailed
from .printing import print_line, print_table
from .sql_answers import SqlArguments, print_answer
from .sql_names import DELIMITERS, Names
from .sql_text import divided, name_parts

readline: Any
try:
    import readline
except ImportError:  # some builds of Python lack it
    readline = None

HISTORY_LINES = 2000
HELP = (
    r"SELECT …;             run a statement, which may have several lines",
    r"\d                    list the tables",
    r"\d NAMESPACE.TABLE    show the columns of a table",
    r"\timing               show how long each statement takes, or stop that",
    r"\q                    leave, as Ctrl-D does",
    r"Ctrl-C                end the running query, or drop what was typed",
)


class SqlPrompt:
    """Reads statements from a terminal and prints their answers."""

    def __init__(self, client: Client, asked: SqlArguments, kind: str) -> None:
        """``kind`` is the format of the answers."""
        self._client = client
        self._asked = asked
        self._kind = kind
        self._timing = False
        self._history = Path("~/.ingester_history").expanduser()

    def run(self) -> None:
        """Read and answer until the end of the input."""
        names = Names(self._client, self._asked.namespace)
        names.load_in_background()
        self._set_up_editing(names)
        print_line(rf"{self._client.endpoint}, \? for help", sys.stderr)
        typed = ""
        while True:
            try:
                line = input("ingester-> " if typed else "ingester=> ")
                typed = self._typed(f"{typed}{line}\n")
            except EOFError:
                print_line("", sys.stderr)
                return
            except KeyboardInterrupt:
                print_line("", sys.stderr)
                typed = ""

    def _typed(self, text: str) -> str:
        """Run what is complete in a text; the rest, which further lines complete."""
        words = text.strip().rstrip(";").split(maxsplit=1)
        if not words:
            return ""
        if words[0].startswith("\\") or words[0].lower() in ("quit", "exit", "help"):
            self._remember(text)
            self._reported(partial(self._command, *words))
            return ""
        if ";" not in text:
            return text
        statements, rest = divided(text)
        if statements:
            self._remember(text.removesuffix(rest))
        for statement in statements:
            if not self._reported(partial(self._answer, statement)):
                return ""
        return rest

    def _reported(self, act: Callable[[], None]) -> bool:
        """Run ``act`` and print its error; whether it succeeded."""
        try:
            act()
        except KeyboardInterrupt:
            print_line("cancelled", sys.stderr)
        except (ClientError, CommandFailed) as exc:
            for line in masked(str(exc)).splitlines():
                print_line(line, sys.stderr)
        else:
            return True
        return False

    def _answer(self, statement: str) -> None:
        began = time.monotonic()
        rows = print_answer(self._client, statement, self._asked, self._kind)
        if self._kind == "table":
            print_line(f"({rows:,} row{'s' * (rows != 1)})", sys.stderr)
        if self._timing:
            print_line(f"time: {(time.monotonic() - began) * 1000:,.1f} ms", sys.stderr)

    def _command(self, name: str, about: str = "") -> None:
        if name in ("\\q", "quit", "exit"):
            raise EOFError
        if name == "\\timing":
            self._timing = not self._timing
            print_line(f"timing is {'on' if self._timing else 'off'}", sys.stderr)
        elif name == "\\d" and about:
            self._print_columns(name_parts(about))
        elif name == "\\d":
            found = self._client.tables()
            rows = [(each.namespace, each.table, _count(each.rows)) for each in found]
            print_table(("namespace", "table", "rows"), rows)
        elif name in ("\\?", "\\h", "help"):
            for line in HELP:
                print_line(line)
        else:
            raise CommandFailed(rf"{name} is not a command; \? lists them")

    def _print_columns(self, parts: list[str]) -> None:
        if len(parts) == 1 and self._asked.namespace is not None:
            parts = [self._asked.namespace, *parts]
        if len(parts) != 2:
            raise CommandFailed(r"expected \d NAMESPACE.TABLE")
        told = self._client.describe(*parts)
        key = set(told.primary_key or ())
        rows = [(c.name, c.type, "primary key" if c.name in key else "") for c in told.schema]
        print_table(("column", "type", ""), rows)

    # ------------------------------------------------------------------------------------- editing

    def _set_up_editing(self, names: Names) -> None:
        if readline is None:
            return
        readline.set_completer(names.complete)
        readline.set_completer_delims(DELIMITERS)
        is_libedit = "libedit" in (readline.__doc__ or "")
        readline.parse_and_bind("bind ^I rl_complete" if is_libedit else "tab: complete")
        readline.set_auto_history(False)
        readline.set_history_length(HISTORY_LINES)
        with contextlib.suppress(OSError):
            os.close(os.open(self._history, os.O_CREAT | os.O_RDONLY, 0o600))
            readline.read_history_file(self._history)

    def _remember(self, text: str) -> None:
        """Add a statement to the history: one entry, unless a line has a comment."""
        if readline is None:
            return
        lines = [line for line in text.splitlines() if line.strip()]
        entries = lines if "--" in text else [" ".join(lines)]
        for entry in entries:
            readline.add_history(entry)
        with contextlib.suppress(OSError):
            readline.append_history_file(len(entries), self._history)


def _count(rows: int) -> int | None:
    return None if rows < 0 else rows
