"""Arguments and options that several commands share. pyarrow is not imported here.

:func:`asks_daemon` adds the connection options to a command; :mod:`.connecting` reads them. A token
itself cannot be given as an option: every account of a machine sees the arguments of its processes.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import typer

from ingester.config.sources import endpoint as default_endpoint

from .exits import USAGE, CommandFailed

ENDPOINT = default_endpoint()

Endpoint = Annotated[
    str,
    typer.Option(
        "--endpoint",
        help="The daemon, grpc://HOST:PORT, or several: a:8082,b:8082, dns+grpc://NAME:8082."
        " Environment: INGESTER_ENDPOINT.",
    ),
]
TlsCa = Annotated[
    str | None,
    typer.Option(
        "--tls-ca",
        metavar="FILE",
        help="CA certificates to trust. Default: the system's. Environment: INGESTER_TLS_CA.",
    ),
]
TlsCert = Annotated[
    str | None,
    typer.Option(
        "--tls-cert",
        metavar="FILE",
        help="Client certificate for mutual TLS. Environment: INGESTER_TLS_CERT.",
    ),
]
TlsKey = Annotated[
    str | None,
    typer.Option(
        "--tls-key",
        metavar="FILE",
        help="Key of the client certificate. Environment: INGESTER_TLS_KEY.",
    ),
]
TokenFile = Annotated[
    str | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        help="File with the token. Environment: INGESTER_TOKEN_FILE, or INGESTER_TOKEN for the"
        " token itself.",
    ),
]
Config = Annotated[
    Path | None, typer.Option("--config", help="TOML file. Environment: INGESTER_CONFIG.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Insecure = Annotated[
    bool,
    typer.Option("--insecure", help="Allow addresses beyond the loopback without TLS and tokens."),
]
Ack = Annotated[
    str | None,
    typer.Option(
        "--ack",
        metavar="disk|store",
        help="When a batch is acknowledged: on the daemon's disk, or in object storage, where it"
        " survives the loss of the machine. Default: the table's level.",
    ),
]
Filter = Annotated[
    str | None, typer.Option("--filter", help="Rows to keep, such as \"host = 'h1' and v > 3\".")
]
AsJsonLines = Annotated[bool, typer.Option("--json", help="Same as --format jsonl.")]
OutputFormat = Annotated[
    str | None,
    typer.Option(
        "--format",
        help="table, csv, jsonl, arrow or parquet. Default: by the extension of --output, else"
        " table.",
    ),
]
OutputFile = Annotated[
    Path | None,
    typer.Option("--output", help="Output file. It appears complete or not at all."),
]
AllowMissing = Annotated[
    bool, typer.Option("--allow-missing", help="With several daemons: skip unreachable ones.")
]
NewColumns = Annotated[
    str | None,
    typer.Option(
        "--columns", help='Columns: a,b or a,"b,c". Default: all, including columns added later.'
    ),
]
Namespace = Annotated[str, typer.Argument(help="The table's namespace.", show_default=False)]
TableName = Annotated[str, typer.Argument(help="The table.", show_default=False)]
SomeNamespace = Annotated[
    str | None, typer.Argument(help="Only this namespace.", show_default=False)
]
SomeTable = Annotated[str | None, typer.Argument(help="Only this table.", show_default=False)]

_CONNECTION = {
    "tls_ca": TlsCa,
    "tls_cert": TlsCert,
    "tls_key": TlsKey,
    "token_file": TokenFile,
}
_given: ContextVar[Mapping[str, str | None]] = ContextVar("connection options")
Command = TypeVar("Command", bound=Callable[..., None])


def ack_level(text: str | None) -> Literal["disk", "store"] | None:
    """The level of ``--ack``.

    Raises:
        CommandFailed: It is none.
    """
    match text:
        case None | "disk" | "store":
            return text
    raise CommandFailed(f"--ack {text!r} is neither disk nor store", USAGE)


def asks_daemon(command: Command) -> Command:
    """The command with connection options added; the command itself does not see them."""
    signature = inspect.signature(command)
    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in _CONNECTION.items()
    ]

    @functools.wraps(command)
    def asking(**arguments: Any) -> None:
        _given.set({name: arguments.pop(name, None) for name in _CONNECTION})
        command(**arguments)

    parameters = [*signature.parameters.values(), *more]
    asking.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    asking.__annotations__ = {**inspect.get_annotations(command), **_CONNECTION}
    return asking  # type: ignore[return-value]


def given_connection() -> Mapping[str, str | None]:
    """The connection options of the running command, by name."""
    return _given.get({})
