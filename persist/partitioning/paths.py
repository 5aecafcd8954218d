"""Hive-encoded partition folders, readable by Spark, DuckDB and pyarrow unaided.

Law of this file: everything but ``[A-Za-z0-9_.-]`` is percent-encoded, null is
``__HIVE_DEFAULT_PARTITION__``. A folder's name only places files; the manifest's values and the
column inside the file are the truth. An empty string has no folder name of its own that Spark would
accept (Spark itself writes it as null), so it shares the null folder.
"""

from __future__ import annotations

from urllib.parse import quote

from persist.partitioning.spec import (
    InvalidPartitionSpec,
    PartitionSpec,
    PartitionValue,
    PartitionValues,
)

NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
FOLDER_VALUE_BYTES = 180
"""The longest encoded value: local file systems take names of 255 bytes, the column's included."""

FOLDER_NAME_BYTES = 74
"""The longest encoded name of a partition column: what is left beside the value and the ``=``."""


def encode_value(value: PartitionValue) -> str:
    """One value as it stands behind ``name=``."""
    if value is None or value == "":
        return NULL_FOLDER
    if isinstance(value, bool):
        return "true" if value else "false"
    text = quote(str(value), safe="").replace("~", "%7E")
    # Spark compares the raw text with its null marker before it decodes.
    return "%5F" + text[1:] if text == NULL_FOLDER else text


def encode_name(name: str) -> str:
    """A column's name as it stands before ``=``."""
    return quote(name, safe="").replace("~", "%7E")


def check_folder_names(spec: PartitionSpec) -> None:
    """Raise :class:`InvalidPartitionSpec` for a name that is too long for a folder's."""
    for name in spec.names:
        if len(encode_name(name)) > FOLDER_NAME_BYTES:
            raise InvalidPartitionSpec(
                f"partition_by: {name[:40]!r}… has {len(encode_name(name))} bytes as a folder name,"
                f" at most {FOLDER_NAME_BYTES} are possible"
            )


def folder_of(spec: PartitionSpec, values: PartitionValues) -> str:
    """A folder as ``time_day=2026-11-21/host_bucket=3``; empty for an unpartitioned table."""
    return "/".join(
        f"{encode_name(field.name)}={encode_value(value)}"
        for field, value in zip(spec.fields, values, strict=True)
    )
