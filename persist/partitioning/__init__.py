"""How rows are told apart into partitions: specs, vectorised splitting, folder names."""

from persist.partitioning.paths import (
    FOLDER_NAME_BYTES,
    FOLDER_VALUE_BYTES,
    check_folder_names,
    encode_name,
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
    PartitionValueTooLong,
    partition_values,
    shared_partition,
    split_batch,
    with_columns,
)

__all__ = [
    "FOLDER_NAME_BYTES",
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
    "encode_name",
    "folder_of",
    "partition_values",
    "shared_partition",
    "split_batch",
    "with_columns",
]
