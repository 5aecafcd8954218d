"""A transformer gets the batches of one stream, in order, and says what is to be written instead.

Law of this file: it stands on pyarrow alone, so that a user's class and its tests need no daemon.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum
from typing import ClassVar

import pyarrow as pa


class Signal(Enum):
    """The answers of a transformer that are no batch."""

    SKIP = "skip"
    UNCHANGED = "unchanged"


SKIP = Signal.SKIP
"""Nothing of the batch is written. Its sequence and its checkpoint advance all the same."""
UNCHANGED = Signal.UNCHANGED
"""The batch is written as it came."""


class Transformer(ABC):
    """Changes the batches of one stream before the daemon logs them.

    The daemon makes an instance for each stream, without arguments, and calls one method at a time,
    each in a thread of a pool and not always in the same one. A batch that is sent again is
    transformed again, and then judged by its sequence: a transformer should give the same rows for
    the same batch.
    """

    version: ClassVar[str | None] = None
    """The version of what the class does. Without one, a hash of its source is the version."""

    @abstractmethod
    def transform(self, batch: pa.RecordBatch) -> pa.RecordBatch | Signal:
        """Return what is written instead of a batch: ``SKIP``, ``UNCHANGED``, or another batch.

        Args:
            batch: at least one row, of the schema that ``output_schema`` was asked with.

        Returns:
            A batch of the schema that ``output_schema`` has said, with as many rows as it likes.

        Raises:
            Exception: the batch is no good. It is refused with the class's name and the message.
        """

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        """Return the schema of what ``transform`` makes of batches of ``schema``: the same one.

        The daemon asks once, before the first batch of a stream.
        """
        return schema

    def close(self) -> None:  # noqa: B027 - most have nothing to let go of
        """Let go of what the instance holds: its stream has ended.

        It is not called when the process is killed.
        """
