"""JDBC from Python: connections, statements and ``DatabaseMetaData`` of a driver in a JVM.

Objects of Java are proxies: ``connection.java.getMetaData()`` is the ``DatabaseMetaData``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pytest
from py4j.java_gateway import JavaGateway
from py4j.protocol import Py4JJavaError


class SqlFailure(NamedTuple):
    """A ``java.sql.SQLException``, or another exception that a driver throws."""

    kind: str
    message: str
    sqlstate: str | None


class Connection:
    """A ``java.sql.Connection``; use it in ``with``."""

    def __init__(self, gateway: JavaGateway, url: str, properties: Mapping[str, str]) -> None:
        self.gateway = gateway
        told = gateway.jvm.java.util.Properties()
        for name, value in properties.items():
            told.setProperty(name, value)
        gateway.jvm.java.lang.Class.forName("org.apache.arrow.driver.jdbc.ArrowFlightJdbcDriver")
        self.java: Any = gateway.jvm.java.sql.DriverManager.getConnection(url, told)

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.java.close()

    @property
    def metadata(self) -> Any:
        """The ``DatabaseMetaData``."""
        return self.java.getMetaData()

    def query(self, text: str) -> list[tuple[Any, ...]]:
        """Return the rows of a statement, as ``getObject`` gives them."""
        statement = self.java.createStatement()
        try:
            return rows(statement.executeQuery(text))
        finally:
            statement.close()

    def prepared(self, text: str, *values: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a prepared statement; the values are set by ``setObject``."""
        statement = self.java.prepareStatement(text)
        try:
            for number, value in enumerate(values, 1):
                statement.setObject(number, value)
            return rows(statement.executeQuery())
        finally:
            statement.close()

    def strings(self, kinds: Sequence[str]) -> Any:
        """Return a ``String[]``."""
        array = self.gateway.new_array(self.gateway.jvm.java.lang.String, len(kinds))
        for at, kind in enumerate(kinds):
            array[at] = kind
        return array


def rows(result: Any) -> list[tuple[Any, ...]]:
    """Return all rows of a ``ResultSet``, as ``getObject`` gives them, and close it."""
    count = result.getMetaData().getColumnCount()
    found = []
    while result.next():
        found.append(tuple(_plain(result.getObject(at)) for at in range(1, count + 1)))
    result.close()
    return found


def dicts(result: Any) -> list[dict[str, Any]]:
    """Return all rows of a ``ResultSet`` by column name, and close it."""
    told = result.getMetaData()
    names = [told.getColumnName(at) for at in range(1, told.getColumnCount() + 1)]
    return [dict(zip(names, row, strict=True)) for row in rows(result)]


def failure(call: Any, *arguments: Any) -> SqlFailure:
    """Return what a call throws.

    Exceptions of Avatica wrap the driver's: the innermost message is the server's.
    """
    with pytest.raises(Py4JJavaError) as raised:
        call(*arguments)
    thrown = raised.value.java_exception
    kind = thrown.getClass().getName()
    sqlstate = thrown.getSQLState() if kind.startswith("java.sql.") else None
    messages = []
    while thrown is not None:
        messages.append(str(thrown.getMessage()))
        thrown = thrown.getCause()
    return SqlFailure(kind, " / ".join(messages), sqlstate)


def _plain(value: Any) -> Any:
    """Return numbers, texts and bytes as they are, and objects of Java by their text."""
    return str(value.toString()) if hasattr(value, "getClass") else value
