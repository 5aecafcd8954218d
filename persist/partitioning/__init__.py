"""Which partition a row belongs to, and where the partition's files lie.

    ``day(time)`` ─▶ ``spec``: transforms over columns, with Iceberg's results
    a column      ─▶ ``transform``: the codes of its partition values
    a batch       ─▶ ``split``: one batch for each partition, without a loop over rows
    its values    ─▶ ``paths``: the Hive folder that Spark, DuckDB and pyarrow read
                  ─▶ ``bounds``: what they say about the rows, for pruning

A folder's name only places files: the manifest's values are the truth. No row is changed, and no
value decides where it is not named by a spec. Start reading at ``spec``.
"""

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
from persist.partitioning.split import PartitionValueTooLong as PartitionValueTooLong
from persist.partitioning.split import partition_values as partition_values
from persist.partitioning.split import shared_partition as shared_partition
from persist.partitioning.split import split_batch as split_batch
from persist.partitioning.split import with_columns as with_columns
