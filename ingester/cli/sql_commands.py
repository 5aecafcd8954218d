"""The options of ``sql``."""

from typing import Annotated

import typer

from .command_options import ENDPOINT, AllowMissing, AsJsonLines, Endpoint, OutputFile, OutputFormat


def sql(
    statement: Annotated[
        str | None,
        typer.Argument(
            help="One SQL statement. Default: a prompt, or the statements in standard input.",
            show_default=False,
        ),
    ] = None,
    namespace: Annotated[
        str | None, typer.Option("--namespace", help="Namespace of tables named without one.")
    ] = None,
    format_: OutputFormat = None,
    output: OutputFile = None,
    allow_missing: AllowMissing = False,
    endpoint: Endpoint = ENDPOINT,
    json: AsJsonLines = False,
    csv: Annotated[bool, typer.Option("--csv", help="Same as --format csv.")] = False,
) -> None:
    """Run SQL over buffered rows and files, including everything acknowledged before the call.

    Tables are namespace.table, and namespace."table@v42" in version 42. A statement reads only.
    Without a statement, a prompt on a terminal; else statements from standard input, each ended by
    a semicolon. The first that fails ends the command.
    """
    from .output.formats import format_of
    from .sql import run_sql
    from .sql_answers import SqlAnswers

    kind = format_of(format_ or ("jsonl" if json else None) or ("csv" if csv else None), output)
    run_sql(endpoint, statement, SqlAnswers(namespace, kind, output, allow_missing))
