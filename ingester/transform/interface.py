"""The base class of transformers. It depends on pyarrow alone, so user classes and their tests
need no daemon.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum
from typing import ClassVar

import pyarrow as pa


class Signal(Enum):
    """Results of a transformer that are not batches."""

    SKIP = "skip"
    UNCHANGED = "unchanged"


SKIP = Signal.SKIP
"""Write nothing of the batch. Its sequence and checkpoint still advance."""
UNCHANGED = Signal.UNCHANGED
"""Write the batch unchanged."""


class Transformer(ABC):
    """Changes the batches of one stream before the daemon logs them.

    The daemon creates one instance per stream, without arguments, and calls one method at a
    time, in varying pool threads. A batch that is sent again is transformed again before its
    sequence is checked, so a transformer should be deterministic.
    """

    version: ClassVar[str | None] = None
    """Version of the class's behaviour. Defaults to a hash of its source."""

    @abstractmethod
    def transform(self, batch: pa.RecordBatch) -> pa.RecordBatch | Signal:
        """Return what to write instead of a batch: ``SKIP``, ``UNCHANGED``, or another batch.

        Args:
            batch: at least one row, with the schema passed to ``output_schema``.

        Returns:
            A batch with the schema that ``output_schema`` returned and any number of rows.

        Raises:
            Exception: refuses the batch, with the class's name and the message.
        """

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        """Return the schema that ``transform`` returns for batches of ``schema``; by default the
        same.

        Called once, before the first batch of a stream.
        """
        return schema

    def close(self) -> None:  # noqa: B027 - most have nothing to release
        """Release the instance's resources at the end of its stream.

        Not called on SIGKILL.
        """
