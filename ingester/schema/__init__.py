"""The columns and types of a table, and the conversion of batches into them.

    ``limits``: the permitted shape of a schema, checked first
    a first write, or a client's request ──▶ ``definition`` ◀── ``limits``: valid names
    a sent schema ──▶ ``types``: the stored form of each type, or why it is refused
    a sent batch  ──▶ ``pieces``: divided where it is too large for one write
                  ──▶ ``normalise``: validated, in the table's types ──▶ the log
                          ``expansion``: the converted size, known before the conversion
    rows of any age ──▶ ``align``: the columns of one schema

The room is pure: it knows definitions but no tables, and uses neither the event loop nor files. A
batch that passes fits the table exactly, so nothing later can fail on a value. Start reading at
``types``, then ``normalise``.
"""

from ingester.schema.normalise import DeleteNormaliser as DeleteNormaliser
from ingester.schema.normalise import Normaliser as Normaliser
from ingester.schema.types import table_type as table_type
