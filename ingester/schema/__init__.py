"""The columns and types that a table takes, and the way in which batches are brought to them.

    ``limits``: the shape that a schema may have, looked at before all else
    a first write, or what a client asks for ──▶ ``definition`` ◀── ``names``
    a sent schema ──▶ ``types``: the form in which each type is kept, or why none is
    a sent batch  ──▶ ``validation`` ──▶ ``normalise``: the table's types ──▶ the log
                          ``expansion`` says how large that will be, before it is made
    keys to be deleted ──▶ ``deletes``: the same, and a mark
    rows of any age ──▶ ``align``: the columns of one schema
    rows of a Spark frame ──▶ ``carried``: the types in which columns are seen there, and come back

This room is pure: it knows no table, only definitions, and touches neither loop nor file. What it
lets through fits the table exactly, so that nothing behind it can fail on a value. Start reading at
``types``, then ``normalise``.
"""

from ingester.schema.deletes import DeleteNormaliser as DeleteNormaliser
from ingester.schema.normalise import Normaliser as Normaliser
from ingester.schema.types import table_type as table_type
