"""``sql``: statements from the command line or a pipe; else the prompt."""

import sys

from .connecting import connect
from .exits import USAGE, CommandFailed, end_on_signals
from .sql_answers import SqlAnswers, divided


def run_sql(endpoint: str, statement: str | None, answers: SqlAnswers) -> None:
    """Run a statement, else those of standard input; a prompt if it is a terminal.

    Raises:
        CommandFailed: Wrong usage.
        ClientError: The daemon refused a statement; those before it have been answered.
    """
    with connect(endpoint) as client:
        if statement is None and sys.stdin.isatty() and sys.stdout.isatty():
            if answers.output is not None:
                raise CommandFailed("--output needs a statement", USAGE)
            # Importing readline may print an escape sequence.
            from .sql_prompt import SqlPrompt

            SqlPrompt(client, answers).run()
            return
        end_on_signals()
        statements = _piped() if statement is None else [statement]
        if answers.output is not None and len(statements) > 1:
            raise CommandFailed(
                f"--output takes the answer of one statement, not of {len(statements)}", USAGE
            )
        for each in statements:
            answers.print(client, each)


def _piped() -> list[str]:
    try:
        statements, rest = divided(sys.stdin.buffer.read().decode("utf-8-sig"))
    except UnicodeDecodeError as exc:
        raise CommandFailed(f"the statements are not UTF-8: {exc}", USAGE) from exc
    statements += [rest] if rest else []
    if not statements:
        raise CommandFailed("no statement is given", USAGE)
    return statements
