"""Which columns a table takes, and how a batch is brought to the table's types."""

from ingester.schema.deletes import DeleteNormaliser
from ingester.schema.names import check_column_names, check_table_name
from ingester.schema.normalise import Normaliser
from ingester.schema.size import check_schema_size
from ingester.schema.types import table_type

__all__ = [
    "DeleteNormaliser",
    "Normaliser",
    "check_column_names",
    "check_schema_size",
    "check_table_name",
    "table_type",
]
