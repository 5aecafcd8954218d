"""The client of a command: the address, whom it trusts, and by which token it comes in.

Law of this file: every client of the command line is made by what stands here.
"""

from ingester.client import NEVER, Client, ConnectionOptions, RetryPolicy
from ingester.client.cluster import ClusterConnection, names_several
from ingester.client.connection import Connection
from ingester.config.sources import DEFAULT_ENDPOINT, connection_values

from .command_options import given_connection
from .exits import USAGE, CommandFailed


def connection_options() -> ConnectionOptions:
    """Return what options and environment say of the connection.

    Raises:
        InvalidRequest: an option without the one that it needs.
        ConfigError: a variable that cannot be read.
    """
    return ConnectionOptions(**connection_values(given_connection()))


def dialled(endpoint: str) -> str:
    """Return the address as it is dialled: the default one by TLS where an option asks for it."""
    if endpoint == DEFAULT_ENDPOINT and connection_options().has_tls:
        return endpoint.replace("grpc://", "grpc+tls://")
    return endpoint


def connect(endpoint: str, retry: RetryPolicy = NEVER) -> Client:
    """Return a client of the daemon; nothing is sent yet.

    Raises:
        InvalidRequest: what was given does not go together.
    """
    return Client(dialled(endpoint), retry=retry, options=connection_options())


def connect_to_one(endpoint: str, asked: str) -> Client:
    """Return a client of the one daemon that a command is for.

    Raises:
        CommandFailed: several are named.
        InvalidRequest: what was given does not go together.
    """
    if names_several(dialled(endpoint)):
        raise CommandFailed(
            f"{asked} is for one daemon, and {endpoint} names several: name one with --endpoint",
            USAGE,
        )
    return connect(endpoint)


def connections(endpoint: str, timeout_s: float, *, of_one_store: bool = False) -> list[Connection]:
    """Return a connection to each daemon that is named, for what is asked of each by itself.

    Args:
        of_one_store: whether their answers are put together.

    Raises:
        InvalidRequest: what was given does not go together, or the daemons are of several stores.
        Unreachable: a DNS name cannot be looked up.
    """
    address, options = dialled(endpoint), connection_options()
    if not names_several(address):
        return [Connection(address, timeout_s, NEVER, options)]
    daemons = ClusterConnection(address, timeout_s, NEVER, options)
    if of_one_store:
        daemons.check_store()
    return daemons.each()
