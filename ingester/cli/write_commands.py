"""``ingester write`` and ``ingester create``: their options; what they do is in the modules beside.

Those are imported when a command runs, so that ``ingester --help`` does not wait for pyarrow.
"""

from typing import Annotated

import typer

from .command_options import ENDPOINT, Endpoint, Json, Namespace, TableName
from .exits import USAGE, CommandFailed

ColumnTypes = Annotated[
    list[str] | None,
    typer.Option(
        "--column-types",
        metavar="NAME=TYPE,...",
        help="Of CSV and JSON lines, as zip=string,price=decimal(20,4); may be repeated.",
    ),
]
Delimiter = Annotated[
    str | None, typer.Option("--delimiter", help="Of CSV: one character; default: looked for.")
]
Null = Annotated[
    list[str] | None,
    typer.Option("--null", help="Of CSV: a text that is null in any column; may be repeated."),
]
DecimalComma = Annotated[
    bool, typer.Option("--decimal-comma", help="Of CSV: 1,5 is one and a half.")
]
Encoding = Annotated[
    str | None, typer.Option("--encoding", help="Of text, as latin-1 or utf-16; default: utf-8.")
]
InputFormat = Annotated[
    str | None,
    typer.Option("--input-format", help="parquet, csv, jsonl or arrow; default: by extension."),
]


# Over 60 lines: every option of a Typer command is a parameter.
def write(
    namespace: Namespace,
    table: TableName,
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="Or - for standard input.")],
    input_format: InputFormat = None,
    batch_rows: Annotated[
        int, typer.Option("--batch-rows", min=1, help="Rows per operation, at most.")
    ] = 10_000,
    origin: Annotated[
        str | None,
        typer.Option("--origin", help="Who writes: its rows are numbered, to be repeatable."),
    ] = None,
    first_sequence: Annotated[
        int | None,
        typer.Option(
            "--first-sequence",
            min=1,
            help="The number of the first row, to repeat exactly what may be there in part;"
            " default: one after the last known.",
        ),
    ] = None,
    skip_rows: Annotated[
        int, typer.Option("--skip-rows", min=0, help="Leave out so many rows at the beginning.")
    ] = 0,
    column_types: ColumnTypes = None,
    delimiter: Delimiter = None,
    null: Null = None,
    decimal_comma: DecimalComma = False,
    encoding: Encoding = None,
    retry_for: Annotated[
        str, typer.Option("--retry-for", help="How long to retry what a retry helps.")
    ] = "10s",
    endpoint: Endpoint = ENDPOINT,
    json: Json = False,
) -> None:
    """Send files to a table and print what was acknowledged.

    Types of CSV and JSON lines are the table's, if it exists; else such as hold all that is
    written: a file is looked at whole before its first row is sent, a pipe's first 4 MiB decide.

    With --origin and --first-sequence a command may be repeated, whatever the batch size and also
    with a file that has grown (of several the last: their rows are numbered through): what is there
    already is not written again, and a last line of CSV without its end is left out. Sequences are
    row numbers, so an origin that another program gave sequences of its own does not belong here.
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
        # What is repeated may be a file that grows.
        texts=text_options(column_types, delimiter, null, decimal_comma, encoding)._replace(
            whole_lines=origin is not None
        ),
    )
    write_files(endpoint, sending, files, input_format, retry_for=retry_for, as_json=json)


def create(
    namespace: Namespace,
    table: TableName,
    columns: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME:TYPE]...", help="As zip:string 'price:decimal(20,4)'."),
    ] = None,
    like: Annotated[
        str | None, typer.Option("--like", help="A file with the columns and types to be made.")
    ] = None,
    primary_key: Annotated[
        str | None, typer.Option("--primary-key", help="a,b: rows replace those of their key.")
    ] = None,
    partition_by: Annotated[
        str | None,
        typer.Option(
            "--partition-by",
            help="As 'day(time), bucket(16, host)'; '' for none; default: day(time), if there is"
            " a time.",
        ),
    ] = None,
    sort_by: Annotated[str | None, typer.Option("--sort-by", help="a,b: within files.")] = None,
    timestamp_unit: Annotated[
        str, typer.Option("--timestamp-unit", help="us, or ns, which Spark cannot read.")
    ] = "us",
    input_format: InputFormat = None,
    column_types: ColumnTypes = None,
    delimiter: Delimiter = None,
    null: Null = None,
    decimal_comma: DecimalComma = False,
    encoding: Encoding = None,
    endpoint: Endpoint = ENDPOINT,
    json: Json = False,
) -> None:
    """Make a table, with named columns or those of a file, and print what it is.

    Types: bool, int8 to int64, uint8 to uint64, float32, float64, string, binary, date, timestamp
    (UTC), timestamp_ntz (no zone), decimal(20,4), list<int64>, struct<a:int64,b:string>,
    map<string,int64>. A table that is there with the same definition is fine.
    """
    from .create import TableArguments, create_table
    from .input.source import text_options

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
    )
    texts = text_options(column_types, delimiter, null, decimal_comma, encoding)
    create_table(endpoint, arguments, texts, json)
