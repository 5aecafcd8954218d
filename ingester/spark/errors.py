"""What can keep a table from being read with Spark, by who must act.

The caller installs or asks for something else: ``PySparkMissing``, ``ReaderUnsuitable``,
``StreamUnsuitable``, ``WriteRefused``.
The caller tries again later: ``TailUnavailable``; with a newer version: ``TailStale``.

What is wrong with the table itself comes from ``persist.manifest`` and ``persist.store``.
"""

from __future__ import annotations


class PySparkMissing(ImportError):
    """PySpark cannot be imported; the message says how to install it."""


class ReaderUnsuitable(ValueError):
    """The reader that was asked for cannot read this table in this session."""


class StreamUnsuitable(ValueError):
    """This table, or what is kept of it, cannot be streamed from here."""


class WriteRefused(ValueError):
    """The rows, or the table, are not such that they can be written there."""


class TailUnavailable(RuntimeError):
    """A daemon did not give its buffered rows. ``code`` is the daemon's own, where it sent one."""

    def __init__(self, endpoint: str, message: str, code: str | None = None) -> None:
        super().__init__(f"{endpoint}: {message}")
        self.endpoint = endpoint
        self.code = code


class TailStale(TailUnavailable):
    """The daemon has no tail for so old a version any more: load a newer one and ask again."""


def require_pyspark() -> None:
    """Return if PySpark 4 can be imported, else raise :class:`PySparkMissing`."""
    try:
        import pyspark
    except ImportError as exc:
        raise PySparkMissing(
            "reading tables with Spark needs PySpark 4: pip install 'ingester[spark]'"
        ) from exc
    if int(pyspark.__version__.partition(".")[0]) < 4:
        raise PySparkMissing(
            f"PySpark {pyspark.__version__} is too old, 4 is needed: pip install 'ingester[spark]'"
        )
