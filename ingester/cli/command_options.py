"""The arguments and options that several commands have; pyarrow is not imported here.

A command that asks a daemon is wrapped by :func:`asks_daemon`, which gives it the options that say
whom it trusts and who it is. What was given is read where it connects (:mod:`.connecting`). There
is no option for a token itself: every account of a machine sees the arguments of its processes.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from ingester.config.sources import endpoint as default_endpoint

ENDPOINT = default_endpoint()

Endpoint = Annotated[
    str,
    typer.Option(
        "--endpoint",
        help="The daemon, grpc://HOST:PORT; or all: a:8082,b:8082, dns+grpc://NAME:8082."
        " Or INGESTER_ENDPOINT.",
    ),
]
TlsCa = Annotated[
    str | None,
    typer.Option(
        "--tls-ca",
        metavar="FILE",
        help="Who signs the daemon's certificate; default: the system's. Or INGESTER_TLS_CA.",
    ),
]
TlsCert = Annotated[
    str | None,
    typer.Option(
        "--tls-cert", metavar="FILE", help="Our certificate, if asked. Or INGESTER_TLS_CERT."
    ),
]
TlsKey = Annotated[
    str | None,
    typer.Option("--tls-key", metavar="FILE", help="Its key. Or INGESTER_TLS_KEY."),
]
TokenFile = Annotated[
    str | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        help="The token is in it. Or INGESTER_TOKEN_FILE; INGESTER_TOKEN has it itself.",
    ),
]
Config = Annotated[Path | None, typer.Option("--config", help="TOML file. Or INGESTER_CONFIG.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Insecure = Annotated[
    bool,
    typer.Option(
        "--insecure", help="Listen beyond the loopback without TLS and tokens all the same."
    ),
]
Filter = Annotated[str | None, typer.Option("--filter", help="As \"host = 'h1' and v > 3\".")]
NewColumns = Annotated[
    str | None, typer.Option("--columns", help='a,b or a,"b,c"; default all, also new ones.')
]
Namespace = Annotated[str, typer.Argument(help="The table's namespace.", show_default=False)]
TableName = Annotated[str, typer.Argument(help="The table.", show_default=False)]

_CONNECTION = {
    "tls_ca": TlsCa,
    "tls_cert": TlsCert,
    "tls_key": TlsKey,
    "token_file": TokenFile,
}
_given: ContextVar[Mapping[str, str | None]] = ContextVar("connection options")
Command = TypeVar("Command", bound=Callable[..., None])


def asks_daemon(command: Command) -> Command:
    """Return the command with the options of a connection, which it does not see itself."""
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
    """Return what the options of the running command say of its connection."""
    return _given.get({})
