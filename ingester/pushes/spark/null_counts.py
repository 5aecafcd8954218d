"""The nulls of a version's columns, counted by Spark where its manifest does not know them.

Law of this file: a number is exact or it is not there. What was counted is kept for as long as the
version has the same files, as hooks ask again and again.
"""

from __future__ import annotations

import threading
from collections.abc import Collection

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from ingester.pushes.push_config import RegionSettings
from ingester.pushes.spark.arrange import named
from ingester.spark.read.read_table import read_table


class NullCounter:
    """Counts nulls in the tables of regions; from any thread."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._lock = threading.Lock()
        self._known: dict[tuple[str, str, str, int, int, str], int] = {}

    def count(
        self,
        region: RegionSettings,
        table: tuple[str, str],
        version: tuple[int, int],
        columns: Collection[str],
    ) -> dict[str, int]:
        """Return the nulls of these columns.

        Args:
            version: Of the table, and of its manifest.

        Raises:
            ManifestError, StoreError, TailUnavailable: They cannot be counted now.
        """
        with self._lock:  # two hooks that ask for the same wait for one count
            keys = {name: (region.url, *table, *version, name) for name in columns}
            missing = [name for name, key in keys.items() if key not in self._known]
            if missing:
                frame = read_table(
                    self._spark,
                    region.url,
                    *table,
                    version=version[1],
                    table_version=version[0],
                    storage_options=region.storage_options,
                )
                counts = [F.count(F.when(named(name).isNull(), 1)) for name in missing]
                [row] = frame.agg(*counts).collect()
                self._known.update({keys[name]: row[i] for i, name in enumerate(missing)})
            return {name: self._known[key] for name, key in keys.items()}
