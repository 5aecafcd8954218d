"""Clients for commands: address, TLS trust and token from options and environment."""

from ingester.client import NEVER, Client, ConnectionOptions, RetryPolicy
from ingester.client.cluster import ClusterConnection, names_several
from ingester.client.connection import Connection
from ingester.config.sources import DEFAULT_ENDPOINT, connection_values

from .command_options import given_connection
from .exits import USAGE, CommandFailed


def connection_options() -> ConnectionOptions:
    """The connection's options, from the command's options and the environment.

    Raises:
        InvalidRequest: An option lacks another that it needs.
        ConfigError: A variable cannot be read.
    """
    return ConnectionOptions(**connection_values(given_connection()))


def dialled(endpoint: str) -> str:
    """The address to connect to: the default one uses TLS if a TLS option is given."""
    if endpoint == DEFAULT_ENDPOINT and connection_options().has_tls:
        return endpoint.replace("grpc://", "grpc+tls://")
    return endpoint


def connect(endpoint: str, retry: RetryPolicy = NEVER) -> Client:
    """A client of the daemon. Nothing is sent yet.

    Raises:
        InvalidRequest: The options contradict each other.
    """
    return Client(dialled(endpoint), retry=retry, options=connection_options())


def connect_to_one(endpoint: str, asked: str) -> Client:
    """A client for a command that works on one daemon only.

    Raises:
        CommandFailed: The endpoint names several daemons.
        InvalidRequest: The options contradict each other.
    """
    if names_several(dialled(endpoint)):
        raise CommandFailed(
            f"{asked} works on one daemon, but {endpoint} names several: name one with --endpoint",
            USAGE,
        )
    return connect(endpoint)


def connections(endpoint: str, timeout_s: float, *, of_one_store: bool = False) -> list[Connection]:
    """One connection to each daemon that the endpoint names.

    Args:
        of_one_store: Whether their answers will be combined; then they must share a store.

    Raises:
        InvalidRequest: The options contradict each other, or the daemons use different stores.
        Unreachable: A DNS name cannot be looked up.
    """
    address, options = dialled(endpoint), connection_options()
    if not names_several(address):
        return [Connection(address, timeout_s, NEVER, options)]
    daemons = ClusterConnection(address, timeout_s, NEVER, options)
    if of_one_store:
        daemons.check_store()
    return daemons.each()
