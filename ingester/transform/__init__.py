"""The interface of record transformers: what a class is that changes batches on their way in.

It is for people who write such classes, and has nothing of the daemon: it imports pyarrow alone.
The daemon runs them (:mod:`ingester.write.transform`); ``docs/transformers.md`` says how.

    ``interface``   :class:`Transformer`, which gets a batch and answers with one, with ``SKIP`` or
                    with ``UNCHANGED``
    ``rows``        :class:`RowTransformer`, which gets a row as a dict

Start reading at ``interface``.
"""

from ingester.transform.interface import SKIP, UNCHANGED, Signal, Transformer
from ingester.transform.rows import RowTransformer

__all__ = ["SKIP", "UNCHANGED", "RowTransformer", "Signal", "Transformer"]
