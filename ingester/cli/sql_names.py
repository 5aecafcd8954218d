"""Completion of keywords, tables and columns at the prompt. The daemon is asked once."""

import threading

from ingester.client import Client, ClientError
from ingester.shown_text import has_hidden

from .sql_text import as_name

MOST_TABLES = 500
"""The tables whose columns are completed."""
DELIMITERS = " \t\n(),;=<>+*/|"
KEYWORDS = """
    SELECT FROM WHERE GROUP BY HAVING ORDER LIMIT OFFSET JOIN LEFT RIGHT FULL INNER OUTER CROSS ON
    USING UNION ALL EXCEPT INTERSECT DISTINCT WITH RECURSIVE AS AND OR NOT IN IS NULL LIKE ILIKE
    BETWEEN CASE WHEN THEN ELSE END CAST INTERVAL TIMESTAMP DATE OVER PARTITION ROWS RANGE
    QUALIFY UNNEST VALUES DESCRIBE SHOW TABLES SUMMARIZE EXPLAIN ASC DESC NULLS FIRST LAST COUNT
    SUM AVG MIN MAX
"""


class Names:
    """The words that the prompt completes."""

    def __init__(self, client: Client, namespace: str | None) -> None:
        self._client = client
        self._namespace = namespace
        self._words: list[str] = KEYWORDS.split()
        self._columns: list[str] = []
        self._found: list[str] = []

    def load_in_background(self) -> None:
        """Call :meth:`load` in another thread."""
        threading.Thread(target=self.load, name="ingester-names", daemon=True).start()

    def load(self) -> None:
        """Ask the daemon for tables and columns; without an answer there are only keywords."""
        try:
            tables = self._client.tables()
            names = {f"{as_name(each.namespace)}.{as_name(each.table)}" for each in tables}
            names |= {as_name(each.table) for each in tables if each.namespace == self._namespace}
            self._words += _shown(names)
            columns: set[str] = set()
            for each in tables[:MOST_TABLES]:
                schema = self._client.schema(each.namespace, each.table)
                columns.update(map(as_name, schema.names))
            self._columns = _shown(columns)
        except ClientError:
            pass  # a statement will report it

    def complete(self, text: str, state: int) -> str | None:
        """The ``state``-th completion of a word, as readline asks for it."""
        if state == 0:
            before, dot, column = text.rpartition(".")
            words = [each for each in self._words + self._columns if _begins(each, text)]
            if dot and not words:  # an alias
                words = [f"{before}.{name}" for name in self._columns if _begins(name, column)]
            self._found = sorted(set(words))
        return self._found[state] if state < len(self._found) else None


def _begins(word: str, text: str) -> bool:
    return word.lower().startswith(text.lower())


def _shown(names: set[str]) -> list[str]:
    return sorted(name for name in names if not has_hidden(name))
