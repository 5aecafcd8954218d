"""``sql``: statements from the command line, a file or a pipe; else the prompt."""

import json
import sys
from decimal import Decimal
from typing import Any, NoReturn

from .connecting import connect
from .exits import USAGE, CommandFailed, end_on_signals
from .output.formats import format_of
from .sql_answers import SqlArguments, print_answer
from .sql_text import divided


def run_sql(endpoint: str, asked: SqlArguments) -> None:
    """Run statements, or the prompt if there are none and a terminal.

    Raises:
        CommandFailed: Wrong usage.
        ClientError: The daemon refused a statement; those before it have been answered.
    """
    kind = format_of(asked.format, asked.output)
    with connect(endpoint) as client:
        is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
        if asked.statement is None and asked.file is None and is_terminal:
            if asked.output is not None:
                raise CommandFailed("--output needs a statement", USAGE)
            # Importing readline may print an escape sequence.
            from .sql_prompt import SqlPrompt

            SqlPrompt(client, asked, kind).run()
            return
        end_on_signals()
        statements = _statements(asked)
        if asked.output is not None and len(statements) > 1:
            raise CommandFailed(
                f"--output takes the answer of one statement, not of {len(statements)}", USAGE
            )
        for statement in statements:
            print_answer(client, statement, asked, kind)


def parameters_of(given: list[str]) -> dict[str, Any]:
    """The values of ``--param NAME=VALUE`` by name. Fractions keep their digits.

    Raises:
        CommandFailed: It has another form, or a name twice.
    """
    found: dict[str, Any] = {}
    for each in given:
        name, equals, text = each.partition("=")
        name = name.strip().removeprefix("$")
        if not equals or not name:
            raise CommandFailed(f"--param {each!r} is not NAME=VALUE", USAGE)
        if name in found:
            raise CommandFailed(f"--param {name} is given twice", USAGE)
        try:
            found[name] = json.loads(text, parse_float=Decimal, parse_constant=_not_json)
        except (ValueError, RecursionError):
            found[name] = text
    return found


def _not_json(text: str) -> NoReturn:
    raise ValueError(text)


def _statements(asked: SqlArguments) -> list[str]:
    if asked.statement is not None and asked.file is not None:
        raise CommandFailed("a statement and --file exclude each other", USAGE)
    if asked.statement not in (None, "-"):
        return [asked.statement]
    data = sys.stdin.buffer.read() if asked.file is None else asked.file.read_bytes()
    try:
        statements, rest = divided(data.decode("utf-8-sig"))
    except UnicodeDecodeError as exc:
        raise CommandFailed(f"the statements are not UTF-8: {exc}", USAGE) from exc
    statements += [rest] if rest else []
    if not statements:
        raise CommandFailed("no statement is given", USAGE)
    return statements
