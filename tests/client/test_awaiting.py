"""The asynchronous clients have the methods of the blocking one."""

import inspect

import pytest

from ingester.client import Client
from ingester.client.aio import (
    AsyncClient,
    AsyncQueryStream,
    AsyncSqlStream,
    AsyncSyncStream,
    AsyncTableCopy,
    AsyncWriter,
)
from ingester.client.awaiting import AwaitedClient
from ingester.client.trio_client import TrioClient


@pytest.mark.parametrize("kind", [TrioClient, AsyncClient])
def test_every_call_of_the_blocking_client_has_an_async_counterpart(
    kind: type[AwaitedClient],
) -> None:
    own_results = {
        "writer": AsyncWriter,
        "query_stream": AsyncQueryStream,
        "sql_stream": AsyncSqlStream,
        "sync": AsyncSyncStream,
        "copy": AsyncTableCopy,
    }
    calls = {name for name in dir(Client) if not name.startswith("_")}
    assert calls == {name for name in dir(kind) if not name.startswith("_")} - {"loop"}
    for name in calls - {"close"}:
        blocking, call = getattr(Client, name), getattr(kind, name)
        expected = inspect.signature(blocking)
        if name in own_results:
            expected = expected.replace(return_annotation=own_results[name])
        elif name == "daemons":
            expected = inspect.signature(AwaitedClient.daemons)
        assert inspect.iscoroutinefunction(call)
        assert inspect.signature(call) == expected
        first_line = (inspect.getdoc(blocking) or "").splitlines()[0]
        assert (inspect.getdoc(call) or "").startswith(first_line)
