"""Names published tables in an existing Iceberg catalogue, and keeps them up to date there.

    first       ``register_table`` with the location of our newest metadata
    afterwards  ``commit_table`` with what our metadata has and the catalogue's lacks

Every catalogue that pyiceberg can load is supported: REST, Glue, Hive, SQL. A commit is the
catalogue's own and requires the state that was compared. A snapshot of the ingester has its
sequence number as its id; if the catalogue has another snapshot, or another table of this name,
nothing there is changed (tests/persist/publish/test_registration.py).

The catalogue's side writes a metadata file at each commit. These files are in ``_registered/`` of
the table's folder, apart from ours, and the last ``KEPT_FILES`` are kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata

NAME = "ingester"
"""The catalogue's name in pyiceberg, unless the options have another: options may also come from
its configuration file and from ``PYICEBERG_CATALOG__INGESTER__…`` in the environment."""
NEEDS = "needs the extra iceberg: pip install '.[iceberg]' in the folder of the sources"
FOLDER = "_registered"
KEPT_FILES = 10
ATTEMPTS = 3
"""Another daemon may register the same version at the same time."""
MAIN = "main"
Metadata = dict[str, Any]
"""A metadata file, or a part of one, as the specification has it in JSON."""


class NotRegistered(Exception):
    """The catalogue has something of this name that is not the ingester's, and is left as it is.

    The message names it, and what an operator can do.
    """


class CatalogUnavailable(Exception):
    """The catalogue, or the store as it sees it, did not do what was asked: try again later."""


class Registration:
    """Registers tables in one catalogue. Calls block; one thread at a time.

    Args:
        options: those of ``pyiceberg.catalog.load_catalog``, such as ``type``, ``uri``, ``token``,
            and ``name``, by which SQL catalogues in one database differ. Catalogues other than REST
            read and write metadata from this process, so options such as ``s3.endpoint`` belong
            here as well. ``{"s3": {"endpoint": …}}`` is the same as ``{"s3.endpoint": …}``.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        """Check that pyiceberg is installed; contacts nothing.

        Raises:
            ImportError: it is not; the message names the extra.
        """
        try:
            import pyiceberg.catalog  # noqa: F401  (the load is slow, and a start must show this)
        except ImportError as exc:
            raise ImportError(NEEDS) from exc
        self._options = {"name": NAME, **dict(_flat(options))}
        self._catalog: Catalog | None = None

    def register(
        self, namespace: str, table: str, metadata_location: str, metadata_json: bytes
    ) -> None:
        """Make the catalogue's table what this metadata says; nothing if it is as new already.

        A missing namespace is created.

        Args:
            metadata_location: the URL of our metadata file, which the catalogue can read.
            metadata_json: the file's content.

        Raises:
            NotRegistered: the catalogue has another table of this name, or a foreign snapshot.
            CatalogUnavailable: it failed; nothing, or all of it, was registered.
        """
        from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError

        ours = msgspec.json.decode(metadata_json)
        attempts = ATTEMPTS
        while True:
            attempts -= 1
            try:
                self._bring_up_to_date((namespace, table), metadata_location, ours)
                return
            except NotRegistered:
                raise
            except Exception as exc:
                is_race = isinstance(exc, CommitFailedException | TableAlreadyExistsError)
                if not (is_race and attempts):
                    self._catalog = None
                    told = f"{type(exc).__name__}: {exc}"
                    raise CatalogUnavailable(
                        f"table {namespace}/{table} is not up to date in the catalogue: {told}"
                    ) from exc

    def _bring_up_to_date(self, name: tuple[str, str], location: str, ours: Metadata) -> None:
        from pydantic import TypeAdapter
        from pyiceberg.catalog import load_catalog
        from pyiceberg.exceptions import NoSuchTableError
        from pyiceberg.table.update import AssertRefSnapshotId, AssertTableUUID, TableUpdate

        if self._catalog is None:
            self._catalog = load_catalog(**self._options)
        catalog = self._catalog
        try:
            table = catalog.load_table(name)
        except NoSuchTableError:
            catalog.create_namespace_if_not_exists(name[0])
            catalog.register_table(name, location)
            return
        theirs = table.metadata
        _check_ours(name, theirs, ours)
        if _newest(theirs) >= ours["current-snapshot-id"]:
            return
        updates: TypeAdapter[TableUpdate] = TypeAdapter(TableUpdate)
        current = {"ref": MAIN, "snapshot-id": theirs.current_snapshot_id}
        catalog.commit_table(
            table,
            (AssertTableUUID(uuid=theirs.table_uuid), AssertRefSnapshotId.model_validate(current)),
            tuple(map(updates.validate_python, _updates(theirs, ours))),
        )
        _delete_old_files(catalog.load_table(name), theirs)


def _flat(options: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The options with dotted names. Those of ``auth`` and ``ssl`` are tables for pyiceberg too."""
    for name, value in options.items():
        if isinstance(value, dict) and (prefix or name not in ("auth", "ssl")):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _check_ours(name: tuple[str, str], theirs: TableMetadata, ours: Metadata) -> None:
    """Raise :class:`NotRegistered` unless everything in the catalogue is the ingester's."""
    shown = f"{name[0]}.{name[1]}"
    if str(theirs.table_uuid) != ours["table-uuid"]:
        raise NotRegistered(
            f"the catalogue has another table {shown} (uuid {theirs.table_uuid}, not"
            f" {ours['table-uuid']}): drop it there without purging files, or rename it"
        )
    lists = {each["snapshot-id"]: each["manifest-list"] for each in ours["snapshots"]}
    for each in theirs.snapshots:
        number, listed = each.snapshot_id, each.manifest_list
        if number != each.sequence_number or lists.get(number, listed) != listed:
            raise NotRegistered(
                f"snapshot {number} of table {shown} in the catalogue is not the ingester's:"
                " another program has written to the table. Drop the table there without purging"
                " files, and it is registered again"
            )


def _newest(theirs: TableMetadata) -> int:
    """The number of the newest version that the catalogue has, 0 if it has none."""
    return max((each.snapshot_id for each in theirs.snapshots), default=0)


def _updates(theirs: TableMetadata, ours: Metadata) -> Iterator[Metadata]:
    """What makes the catalogue's metadata like ours, as updates of the REST specification.

    Snapshots are added if they follow the catalogue's newest.
    """
    schema_ids: dict[int, int] = {}
    yield from _schema_updates(theirs, ours, schema_ids)
    if (current := schema_ids[ours["current-schema-id"]]) != theirs.current_schema_id:
        yield {"action": "set-current-schema", "schema-id": current}
    yield from _spec_updates(theirs, ours)
    if (default := ours["default-spec-id"]) != theirs.default_spec_id:
        yield {"action": "set-default-spec", "spec-id": default}
    properties = {**ours["properties"], **_own_properties(ours)}
    if changed := {k: v for k, v in properties.items() if theirs.properties.get(k) != v}:
        yield {"action": "set-properties", "updates": changed}
    newest = _newest(theirs)
    for snapshot in ours["snapshots"]:
        if snapshot["snapshot-id"] > newest:
            translated = {**snapshot, "schema-id": schema_ids[snapshot["schema-id"]]}
            yield {"action": "add-snapshot", "snapshot": translated}
    number = ours["current-snapshot-id"]
    ref = {"ref-name": MAIN, "type": "branch", "snapshot-id": number}
    yield {"action": "set-snapshot-ref", **ref}
    kept = {each["snapshot-id"] for each in ours["snapshots"]}
    if gone := [each.snapshot_id for each in theirs.snapshots if each.snapshot_id not in kept]:
        yield {"action": "remove-snapshots", "snapshot-ids": gone}


def _schema_updates(
    theirs: TableMetadata, ours: Metadata, schema_ids: dict[int, int]
) -> Iterator[Metadata]:
    """The schemas that the catalogue lacks; fills ``schema_ids`` with its ids by ours.

    Many catalogues number schemas themselves, without gaps. Ours may have gaps, because a schema
    without a snapshot is left out, so the catalogue's ids may be other ones.
    """
    from pyiceberg.schema import Schema

    known = {each.schema_id: each for each in theirs.schemas}
    for schema in ours["schemas"]:
        wanted = Schema.model_validate(schema)
        there = next((number for number, each in known.items() if each == wanted), None)
        if there is None:
            there = max(known) + 1
            known[there] = wanted
            yield {"action": "add-schema", "schema": {**schema, "schema-id": there}}
        schema_ids[schema["schema-id"]] = there


def _spec_updates(theirs: TableMetadata, ours: Metadata) -> Iterator[Metadata]:
    """The partition specs that the catalogue lacks. Manifests contain their ids."""
    known = {each.spec_id for each in theirs.partition_specs}
    for spec in sorted(ours["partition-specs"], key=lambda each: int(each["spec-id"])):
        if (number := spec["spec-id"]) in known:
            continue
        if number != max(known) + 1:
            raise NotRegistered(
                f"the catalogue would number partition spec {number} as {max(known) + 1}: drop the"
                " table there without purging files, and it is registered again"
            )
        known.add(number)
        yield {"action": "add-spec", "spec": spec}


def _own_properties(ours: Metadata) -> dict[str, str]:
    """Properties of the catalogue's table only: where its metadata files are, and how many stay."""
    return {
        "write.metadata.path": f"{ours['location'].rstrip('/')}/{FOLDER}",
        "write.metadata.previous-versions-max": str(KEPT_FILES),
        "write.metadata.delete-after-commit.enabled": "true",
    }


def _delete_old_files(table: Table, before: TableMetadata) -> None:
    """Delete the catalogue's metadata files that have left its log of them.

    A catalogue's server may have done so itself.
    """
    kept = {each.metadata_file for each in table.metadata.metadata_log}
    for each in before.metadata_log:
        if each.metadata_file not in kept and f"/{FOLDER}/" in each.metadata_file:
            with suppress(OSError):  # at worst a small file stays
                table.io.delete(each.metadata_file)
