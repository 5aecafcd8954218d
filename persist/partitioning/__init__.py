"""Which partition a row belongs to, and where the partition's files lie.

    ``day(time)`` ─▶ ``spec``: transforms over columns, with Iceberg's results
    a column      ─▶ ``transform``: the codes of its partition values
    a batch       ─▶ ``split``: one batch for each partition, without a loop over rows
    its values    ─▶ ``paths``: the Hive folder that Spark, DuckDB and pyarrow read
                  ─▶ ``bounds``: what they say about the rows, for pruning

A folder's name only places files: the manifest's values are the truth. No row is changed, and no
value decides where it is not named by a spec. Start reading at ``spec``.
"""

from persist.partitioning.paths import (
    FOLDER_VALUE_BYTES,
    check_folder_names,
    folder_of,
)
from persist.partitioning.spec import (
    UNPARTITIONED,
    InvalidPartitionSpec,
    PartitionField,
    PartitionSpec,
    PartitionValue,
    PartitionValues,
    default_spec,
)
from persist.partitioning.split import (
    partition_values,
    shared_partition,
    split_batch,
    with_columns,
)
from persist.partitioning.transform import PartitionValueTooLong

__all__ = [
    "FOLDER_VALUE_BYTES",
    "UNPARTITIONED",
    "InvalidPartitionSpec",
    "PartitionField",
    "PartitionSpec",
    "PartitionValue",
    "PartitionValueTooLong",
    "PartitionValues",
    "check_folder_names",
    "default_spec",
    "folder_of",
    "partition_values",
    "shared_partition",
    "split_batch",
    "with_columns",
]
