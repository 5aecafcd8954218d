"""A table's Iceberg metadata (format v2), written from its manifest.

    <namespace>/<table>/metadata/v<k>.metadata.json            snapshots, columns, partitions
    <namespace>/<table>/metadata/snap-<number>-<sum>.avro      the manifests of a snapshot
    <namespace>/<table>/metadata/manifest-<number>-<sum>.avro  data files
    <namespace>/<table>/metadata/version-hint.text             the newest k, for readers by folder

``table`` has :class:`IcebergTable`: it finds the newest metadata file and creates the next one.
``metadata`` makes its JSON. ``merging`` decides which manifests a snapshot lists, and ``manifests``
encodes them as files of ``avro``. ``schema`` translates columns and partition specs, ``values``
partition values and bounds. Only ``table`` touches the store.

A snapshot's id and sequence number are the number of its manifest version. No delete files are
written: listed files have exactly the rows of the table. Start reading at ``table``.
"""

from persist.publish.iceberg.table import IcebergTable as IcebergTable
