"""Lists of a table's files for readers that do not know the manifest.

Spark's file sink lists its files in ``data/_spark_metadata``. Spark reads a folder with such a list
by it: ``spark.read.parquet(folder)`` has exactly the committed files. The list is one file that is
replaced in one step, so a reader sees one version. Nothing is derived from it, and a table is
complete without it.

Source: ``FileStreamSinkLog`` and ``CompactibleFileStreamLog`` of Spark 4.
"""

from __future__ import annotations

import json
from datetime import datetime
from urllib.parse import quote

from persist.manifest import Add, Manifest, TableState

FOLDER = "_spark_metadata"
# Spark compacts its log with every tenth batch by default; a compacted batch is complete.
_NAME = "9.compact"
_HEADER = "v1"
_HADOOP_SCHEMES = {"s3": "s3a"}
_BLOCK_BYTES = 128 << 20


def spark_log(state: TableState, data_url: str) -> bytes:
    """The log's one file.

    Args:
        data_url: The URL of the table version that the file paths are relative to.
    """
    lines = [_line(add, data_url) for _, add in sorted(state.files.items())]
    return "\n".join([_HEADER, *lines]).encode()


def write_spark_log(manifest: Manifest, state: TableState) -> None:
    """Put the log of this version where Spark looks for it.

    Raises:
        StoreError: The previous log is unchanged.
    """
    log = spark_log(state, f"{hadoop_url(manifest.store.url)}/{manifest.root}")
    manifest.store.put(f"{manifest.root}/data/{FOLDER}/{_NAME}", log)


def has_one_layout(state: TableState) -> bool:
    """Whether all files use one partition spec.

    Spark refuses folders of several specs, or does not read the upper ones.
    """
    if len(state.specs) < 2:
        return True
    return len({state.specs[spec_id].fields for spec_id, _ in state.partitions}) < 2


def hadoop_url(url: str) -> str:
    """A store's URL with Hadoop's scheme: ``s3a`` for ``s3``."""
    scheme, separator, rest = url.partition("://")
    return f"{_HADOOP_SCHEMES.get(scheme, scheme)}{separator}{rest}"


def _line(add: Add, data_url: str) -> str:
    scheme, separator, rest = f"{data_url}/{add.path}".partition("://")
    return json.dumps(
        {
            # In URL form, also if a name contains a percent sign.
            "path": f"{scheme}{separator}{quote(rest, safe='/=:')}",
            "size": add.bytes,
            "isDir": False,
            "modificationTime": round(datetime.fromisoformat(add.at).timestamp() * 1000),
            "blockReplication": 1,
            "blockSize": _BLOCK_BYTES,
            "action": "add",
        },
        separators=(",", ":"),
    )
