"""The interface of transformers: user classes that change batches before they are logged.

For authors of such classes. It imports pyarrow only and nothing of the daemon, which runs the
classes (:mod:`ingester.write.transform`); ``docs/transformers.md`` describes them.

    ``interface``   :class:`Transformer`: receives a batch; returns one, ``SKIP`` or ``UNCHANGED``
    ``rows``        :class:`RowTransformer`: receives each row as a dict

Start reading at ``interface``.
"""

from ingester.transform.interface import SKIP, UNCHANGED, Signal, Transformer
from ingester.transform.rows import RowTransformer

__all__ = ["SKIP", "UNCHANGED", "RowTransformer", "Signal", "Transformer"]
