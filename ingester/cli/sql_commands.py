"""The options of ``sql``."""

from pathlib import Path
from typing import Annotated

import typer

from .command_options import ENDPOINT, AllowMissing, AsJsonLines, Endpoint, OutputFile, OutputFormat


def sql(
    statement: Annotated[
        str | None,
        typer.Argument(
            help="One SQL statement; - reads statements from standard input. Default: a prompt.",
            show_default=False,
        ),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", help="Run the statements in this file.")
    ] = None,
    namespace: Annotated[
        str | None, typer.Option("--namespace", help="Namespace of tables named without one.")
    ] = None,
    param: Annotated[
        list[str] | None,
        typer.Option(
            "--param",
            metavar="NAME=VALUE",
            help="Value of $NAME: JSON, such as 42, true, [1, 2] or '\"42\"', else text."
            " Repeatable.",
        ),
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
    from .sql import parameters_of, run_sql
    from .sql_answers import SqlArguments

    asked = SqlArguments(
        statement=statement,
        file=file,
        namespace=namespace,
        parameters=parameters_of(param or []),
        format=format_ or ("jsonl" if json else None) or ("csv" if csv else None),
        output=output,
        allow_missing=allow_missing,
    )
    run_sql(endpoint, asked)
