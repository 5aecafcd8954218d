"""The options of the commands for rows and tables.

``write``, ``create``, ``query``, ``tail``, ``follow``, ``tables`` and ``checkpoints``.
"""

from typing import Annotated

import typer

from .command_options import (
    ENDPOINT,
    Ack,
    AllowMissing,
    AsJsonLines,
    Config,
    Endpoint,
    Filter,
    Insecure,
    Json,
    Namespace,
    NewColumns,
    OutputFile,
    OutputFormat,
    SomeNamespace,
    SomeTable,
    TableName,
    ack_level,
)
from .exits import USAGE, CommandFailed

ColumnTypes = Annotated[
    list[str] | None,
    typer.Option(
        "--column-types",
        metavar="NAME=TYPE,...",
        help="Types of CSV and JSON columns: zip=string,price=decimal(20,4). Repeatable.",
    ),
]
Delimiter = Annotated[
    str | None,
    typer.Option("--delimiter", help="CSV delimiter, one character. Default: detected."),
]
Null = Annotated[
    list[str] | None,
    typer.Option("--null", help="CSV text that means null in any column. Repeatable."),
]
DecimalComma = Annotated[
    bool, typer.Option("--decimal-comma", help="CSV numbers have a decimal comma: 1,5.")
]
Encoding = Annotated[
    str | None,
    typer.Option("--encoding", help="Text encoding, such as latin-1 or utf-16. Default: utf-8."),
]
Escape = Annotated[
    str | None,
    typer.Option(
        "--escape", help='What stands before a quote in a CSV field, as \\ in "say \\"hi\\"".'
    ),
]
NoQuotes = Annotated[
    bool, typer.Option("--no-quotes", help="Quotes in CSV are ordinary characters.")
]
InputFormat = Annotated[
    str | None,
    typer.Option(
        "--input-format", help="parquet, csv, jsonl or arrow. Default: by the file's extension."
    ),
]


# Over 60 lines: every option of a Typer command is a parameter.
def write(
    namespace: Namespace,
    table: TableName,
    files: Annotated[
        list[str], typer.Argument(metavar="FILE...", help="Input files; - is standard input.")
    ],
    input_format: InputFormat = None,
    batch_rows: Annotated[
        int, typer.Option("--batch-rows", min=1, help="Maximum rows per operation.")
    ] = 10_000,
    origin: Annotated[
        str | None,
        typer.Option(
            "--origin",
            help="Producer id. Its rows are numbered, so a write can be repeated exactly.",
        ),
    ] = None,
    first_sequence: Annotated[
        int | None,
        typer.Option(
            "--first-sequence",
            min=1,
            help="Number of the first row, to repeat a write exactly. Default: the number after"
            " the last known row.",
        ),
    ] = None,
    skip_rows: Annotated[
        int, typer.Option("--skip-rows", min=0, help="Skip this many rows at the start.")
    ] = 0,
    column_types: ColumnTypes = None,
    delimiter: Delimiter = None,
    null: Null = None,
    decimal_comma: DecimalComma = False,
    encoding: Encoding = None,
    escape: Escape = None,
    no_quotes: NoQuotes = False,
    ack: Ack = None,
    retry_for: Annotated[
        str, typer.Option("--retry-for", help="How long to retry transient errors.")
    ] = "10s",
    endpoint: Endpoint = ENDPOINT,
    json: Json = False,
) -> None:
    """Write files to a table and print what was acknowledged.

    CSV and JSON lines take their types from the table, if it exists. Otherwise types are inferred
    so that every value fits: from a whole file, or from the first 4 MiB of a pipe.

    With --origin and --first-sequence a command can be repeated safely, even with another batch
    size or after the last file has grown: rows that are already in the table are not written again,
    and a last CSV line without a line end is left out. Sequences are row numbers, so do not share
    the origin with a program that numbers differently.
    """
    from .input.source import text_options
    from .write import WriteArguments, write_files

    if first_sequence is not None and origin is None:
        raise CommandFailed("--first-sequence needs --origin", USAGE)
    sending = WriteArguments(
        namespace=namespace,
        table=table,
        batch_rows=batch_rows,
        origin=origin,
        first_sequence=first_sequence,
        skip_rows=skip_rows,
        ack=ack_level(ack),
        # A repeated write may read a file that still grows.
        texts=text_options(
            column_types, delimiter, null, decimal_comma, encoding, escape, no_quotes
        )._replace(whole_lines=origin is not None),
    )
    write_files(endpoint, sending, files, input_format, retry_for=retry_for, as_json=json)


def create(
    namespace: Namespace,
    table: TableName,
    columns: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME:TYPE]...", help="Columns, such as zip:string 'price:decimal(20,4)'."
        ),
    ] = None,
    like: Annotated[
        str | None, typer.Option("--like", help="Take columns and types from this file.")
    ] = None,
    primary_key: Annotated[
        str | None,
        typer.Option(
            "--primary-key", help="Key columns: a,b. A row replaces the row with its key."
        ),
    ] = None,
    partition_by: Annotated[
        str | None,
        typer.Option(
            "--partition-by",
            help="Partitioning, such as 'day(time), bucket(16, host)'; '' for none. Default:"
            " day(time), if there is a timestamp column named time.",
        ),
    ] = None,
    sort_by: Annotated[
        str | None, typer.Option("--sort-by", help="Sort order within files: a,b.")
    ] = None,
    timestamp_unit: Annotated[
        str, typer.Option("--timestamp-unit", help="us or ns. Spark cannot read ns.")
    ] = "us",
    publish: Annotated[
        str | None,
        typer.Option(
            "--publish",
            help="Open formats to publish the table in: iceberg,delta; '' for none. Default: the"
            " daemon's setting.",
        ),
    ] = None,
    max_age: Annotated[
        str | None,
        typer.Option(
            "--max-age",
            help="Age at which the table's rows are flushed, such as 5s, if below the daemon's"
            " persist.max_age.",
        ),
    ] = None,
    ack: Annotated[
        str | None,
        typer.Option(
            "--ack",
            metavar="disk|store",
            help="When writes are acknowledged: on the daemon's disk, or in object storage."
            " Default: the level of the namespace or the daemon.",
        ),
    ] = None,
    input_format: InputFormat = None,
    column_types: ColumnTypes = None,
    delimiter: Delimiter = None,
    null: Null = None,
    decimal_comma: DecimalComma = False,
    encoding: Encoding = None,
    escape: Escape = None,
    no_quotes: NoQuotes = False,
    endpoint: Endpoint = ENDPOINT,
    json: Json = False,
) -> None:
    """Create a table with the given columns or those of a file, and print its definition.

    Types: bool, int8 to int64, uint8 to uint64, float32, float64, string, binary, date, timestamp
    (UTC), timestamp_ntz (no zone), decimal(20,4), list<int64>, struct<a:int64,b:string>,
    map<string,int64>. Creating a table that exists with the same definition succeeds.
    """
    from .input.source import text_options
    from .tables import TableArguments, create_table

    arguments = TableArguments(
        namespace=namespace,
        table=table,
        columns=columns or [],
        like=like,
        input_format=input_format,
        primary_key=primary_key,
        partition_by=partition_by,
        sort_by=sort_by,
        timestamp_unit=timestamp_unit,
        publish=publish,
        max_age=max_age,
        ack=ack_level(ack),
    )
    texts = text_options(column_types, delimiter, null, decimal_comma, encoding, escape, no_quotes)
    create_table(endpoint, arguments, texts, json)


def query(
    namespace: Namespace,
    table: TableName,
    columns: Annotated[
        str | None, typer.Option("--columns", help='Columns: a,b or a,"b,c". Default: all.')
    ] = None,
    filter_: Filter = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=0, help="Maximum number of rows.")
    ] = None,
    version: Annotated[
        int | None,
        typer.Option("--version", help="Read exactly the files of this manifest version."),
    ] = None,
    format_: OutputFormat = None,
    output: OutputFile = None,
    allow_missing: AllowMissing = False,
    endpoint: Endpoint = ENDPOINT,
    json: AsJsonLines = False,
) -> None:
    """Print rows, including everything acknowledged before the call.

    CSV and JSON lines write every value so that write reads the same value again: times in ISO
    8601, those with a zone in UTC; decimals with all digits; binary as base64; NaN and Infinity by
    name; lists, structs and maps (as key and value) as JSON. In CSV an empty field is null, and
    text is quoted.
    """
    from .query import QueryArguments, run_query

    arguments = QueryArguments(
        namespace=namespace,
        table=table,
        columns=columns,
        filter=filter_,
        limit=limit,
        version=version,
        allow_missing=allow_missing,
    )
    run_query(endpoint, arguments, format_ or ("jsonl" if json else None), output)


def tail(
    namespace: Namespace,
    table: TableName,
    columns: NewColumns = None,
    filter_: Filter = None,
    since: Annotated[
        str,
        typer.Option("--since", metavar="now|start", help="start: print existing rows first."),
    ] = "now",
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="Stop after this many rows.")
    ] = None,
    format_: Annotated[
        str | None,
        typer.Option(
            "--format", help="table, jsonl or csv. Default: table on a terminal, else jsonl."
        ),
    ] = None,
    endpoint: Endpoint = ENDPOINT,
    json: AsJsonLines = False,
) -> None:
    """Print new rows as they arrive, each once, until Ctrl-C.

    Reconnects when the daemon is unreachable. In a table with a primary key, the column _op says
    whether a row was written or deleted. Only rows that this daemon has accepted are printed.
    """
    from .tail import TailArguments, run_tail

    asked = TailArguments(
        namespace=namespace,
        table=table,
        columns=columns,
        filter=filter_,
        since=since,
        limit=limit,
        format=format_ or ("jsonl" if json else None),
    )
    run_tail(endpoint, asked)


def follow(
    namespace: Namespace,
    tables: Annotated[list[str], typer.Argument(metavar="TABLE...", help="One or more tables.")],
    into: Annotated[
        str,
        typer.Option("--into", help="duckdb:FILE, parquet:FOLDER, or python:package.module:Class."),
    ],
    columns: NewColumns = None,
    filter_: Filter = None,
    from_: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="beginning|tail|TIME",
            help="Start position for a new copy; ignored if one exists. TIME such as"
            " 2026-11-21T10:00:00Z.",
        ),
    ] = "beginning",
    anew: Annotated[
        bool, typer.Option("--anew", help="Rebuild existing copies and swap them when complete.")
    ] = False,
    once: Annotated[
        bool,
        typer.Option(
            "--once",
            help="Stop when the copies have caught up, or the store is unreachable for 5 s.",
        ),
    ] = False,
    name: Annotated[
        str,
        typer.Option(
            "--name",
            help="The follower's name; required if its state is kept at the daemon (python:).",
        ),
    ] = "",
    store: Annotated[
        str | None,
        typer.Option("--store", help="URL of the daemon's store. Default: ask the daemon."),
    ] = None,
    http: Annotated[
        str | None, typer.Option("--http", help="HOST:PORT for /metrics and /health.")
    ] = None,
    insecure: Insecure = False,
    config: Config = None,
    endpoint: Endpoint = ENDPOINT,
    json: Json = False,
) -> None:
    """Keep local copies of tables until SIGINT or SIGTERM: files first, then live.

    In DuckDB, rows and the follower's state are committed in one transaction.
    Others may open the file read-only in between. A restart continues exactly
    where it stopped, also after kill -9. With other columns or another filter
    the copy is rebuilt; readers see the earlier copy until it is complete.
    """
    from .follow import FollowArguments, run_follow
    from .metrics_server import MetricsAddress

    asked = FollowArguments(
        namespace=namespace,
        tables=tables,
        into=into,
        columns=columns,
        filter=filter_,
        begin=from_,
        anew=anew,
        once=once,
        name=name,
        store=store,
        config=config,
    )
    at = None if http is None else MetricsAddress("--http", http, insecure)
    run_follow(endpoint, asked, at, json)


def tables(endpoint: Endpoint = ENDPOINT, json: Json = False) -> None:
    """List tables with their buffered and persisted rows."""
    from .tables import print_tables

    print_tables(endpoint, json)


def checkpoints(
    namespace: SomeNamespace = None,
    table: SomeTable = None,
    delete: Annotated[
        str | None,
        typer.Option(
            "--delete", metavar="PARTITION", help="Delete the checkpoint of this source partition."
        ),
    ] = None,
    endpoint: Endpoint = ENDPOINT,
    json: Json = False,
) -> None:
    """List the checkpoints that sources commit with their rows, or delete one."""
    from .tables import delete_checkpoint, print_checkpoints

    if delete is None:
        print_checkpoints(endpoint, namespace, table, json)
    elif namespace is None or table is None:
        raise CommandFailed("--delete PARTITION needs NAMESPACE and TABLE", USAGE)
    else:
        delete_checkpoint(endpoint, (namespace, table), delete, json)
