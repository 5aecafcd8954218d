"""Assigns each row to a partition, and each partition to a folder.

    ``day(time)`` ─▶ `spec`: transforms over columns with Iceberg's results; their Hive folders,
                             and the bounds that a partition's values imply
                  ─▶ `columns`: the columns that a spec computes, for filters
    a batch       ─▶ `split`: its rows ordered by partition, without a loop over rows

A folder name only places files; the manifest's values are the truth. No row is changed. Start
reading at `spec`.
"""

from persist.partitioning.columns import partition_columns as partition_columns
from persist.partitioning.columns import partition_scalar as partition_scalar
from persist.partitioning.spec import FOLDER_VALUE_BYTES as FOLDER_VALUE_BYTES
from persist.partitioning.spec import UNPARTITIONED as UNPARTITIONED
from persist.partitioning.spec import InvalidPartitionSpec as InvalidPartitionSpec
from persist.partitioning.spec import PartitionField as PartitionField
from persist.partitioning.spec import PartitionSpec as PartitionSpec
from persist.partitioning.spec import PartitionValue as PartitionValue
from persist.partitioning.spec import PartitionValues as PartitionValues
from persist.partitioning.spec import check_folder_names as check_folder_names
from persist.partitioning.spec import default_spec as default_spec
from persist.partitioning.spec import folder_of as folder_of
from persist.partitioning.split import PartitionedRows as PartitionedRows
from persist.partitioning.split import PartitionValueTooLong as PartitionValueTooLong
from persist.partitioning.split import any_number as any_number
from persist.partitioning.split import order_by_partition as order_by_partition
from persist.partitioning.split import partition_values as partition_values
from persist.partitioning.split import split_batch as split_batch
from persist.partitioning.split import with_columns as with_columns
