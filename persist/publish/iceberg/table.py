"""One table in Iceberg: finds the newest metadata file and creates the next one.

    manifests ─▶ manifest list ─▶ v<k>.metadata.json created ─▶ v<k-1> exists? ─▶ version-hint.text
                                        │ exists                     │ no
                                        └─ equal bytes: published    └─ deleted again: Overtaken
                                           else: Overtaken

Manifests and lists have names with a checksum of their content, so two publishers never put
different content under one name, and a name that is taken has the right content. The creation of
``v<k>`` is the commit; numbers of metadata files have no gaps. Old ones are deleted in ascending
order, so if ``v<k-1>`` is gone, others have come much further, and the creation does not count.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import chain

import msgspec

from persist.manifest.paths import table_folder
from persist.publish.format import FormatName, Head
from persist.publish.iceberg.manifests import (
    DELETED,
    ManifestWriter,
    decode_entries,
    decode_list,
    encode_list,
)
from persist.publish.iceberg.merging import Held, Mismatch, Pending, full, next_manifests
from persist.publish.iceberg.metadata import (
    WRITTEN_BY_ANOTHER,
    Json,
    Operation,
    Published,
    metadata_path,
    next_metadata,
    read_metadata,
    snapshot_json,
)
from persist.publish.iceberg.schema import unsupported
from persist.publish.steps import ForeignCommit, NotPublishable, Overtaken, Step, joined
from persist.store import AlreadyExists, ObjectInfo, ObjectNotFound, ObjectStore, delete_all
from persist.table import TableDefinition

FIRST_METADATA = "v"
"""Metadata files and the hint come last in a listing of the folder."""
KEPT_METADATA = 100
"""Metadata files that clean-up leaves, besides the newest one."""
_METADATA = re.compile(r"v(\d{1,18})\.metadata\.json")
_OURS = re.compile(r"(?:snap|manifest)-(\d{20})-[0-9a-f]{16}\.avro")


@dataclass(frozen=True, slots=True)
class _Table:
    """What is published, and the manifests of the current snapshot."""

    published: Published
    manifests: tuple[Held, ...]


class IcebergTable:
    """A table's Iceberg metadata in a store; fulfils ``persist.publish.format.Format``."""

    name: FormatName = "iceberg"

    def __init__(self, store: ObjectStore, namespace: str, table: str) -> None:
        """Touches nothing in the store."""
        self._store, self._key = store, (namespace, table)
        self._folder = table_folder(namespace, table)
        self._location = f"{store.url}/{self._folder}"
        self._known: _Table | None = None
        self._hinted = 0
        self._checked: tuple[TableDefinition, tuple[str, ...]] | None = None
        self._listed: dict[str, list[str]] = {}
        """The manifests of each list that clean-up has read."""

    def unsupported(self, definition: TableDefinition) -> tuple[str, ...]:
        """Why Iceberg cannot express the table; see ``Format``."""
        if self._checked is None or self._checked[0] is not definition:
            self._checked = definition, unsupported(definition)
        return self._checked[1]

    def head(self) -> Head | None:
        """The newest published version; see ``Format``."""
        known = self._known
        if known is None or not self._is_newest(known.published.k):
            known = self._known = self._read()
        return None if known is None else self._head(known.published)

    def newest_metadata(self) -> tuple[Head, bytes] | None:
        """The newest metadata file with its content; None if there is none.

        Costs a listing and a read. Raises as :meth:`head`.
        """
        found = self._newest(f"{self._folder}/metadata/{FIRST_METADATA}")
        return None if found is None else (self._head(found[0]), found[1])

    def _newest(self, start_after: str = "") -> tuple[Published, bytes] | None:
        """The newest metadata file, and its content."""
        while True:
            infos = list(self._store.list(f"{self._folder}/metadata/", start_after))
            found = self._metadata_files(infos)
            if not found:
                return None
            k = max(found)
            try:
                data = self._get(metadata_path(k))
                published = read_metadata(k, data)
            except ObjectNotFound:
                continue  # its creation did not count: see _create
            except ValueError as exc:
                raise self._foreign(metadata_path(k), str(exc)) from exc
            if (location := published.content["location"]) != self._location:
                told = f"names files below {location}, and the store is {self._store.url} now"
                raise self._foreign(metadata_path(k), told)
            return published, data

    def _head(self, published: Published) -> Head:
        location = f"{self._location}/{metadata_path(published.k)}"
        return Head(published.place, published.at_ms, location)

    def _is_newest(self, k: int) -> bool:
        return not self._exists(metadata_path(k + 1)) and self._exists(metadata_path(k))

    def _exists(self, path: str) -> bool:
        return self._store.exists(f"{self._folder}/{path}") is not None

    def _read(self) -> _Table | None:
        """What is published, from the store.

        Raises:
            ForeignCommit: the newest metadata is another writer's.
        """
        newest = self._newest()
        if newest is None:
            return None
        url = newest[0].snapshots[-1]["manifest-list"]
        try:
            manifests = decode_list(self._read_url(url))
        except (ObjectNotFound, ValueError) as exc:
            told = "is missing" if isinstance(exc, ObjectNotFound) else "is damaged"
            raise self._foreign(url.removeprefix(f"{self._location}/"), told) from exc
        return _Table(newest[0], tuple(map(Held, manifests)))

    def _metadata_files(self, infos: Sequence[ObjectInfo]) -> dict[int, ObjectInfo]:
        """The metadata files by number."""
        found = {}
        for info in infos:
            name = info.path.rsplit("/", 1)[1]
            if match := _METADATA.fullmatch(name):
                found[int(match[1])] = info
            elif name.endswith(".metadata.json"):
                raise self._foreign(f"metadata/{name}", WRITTEN_BY_ANOTHER)
        return found

    def _get(self, path: str) -> bytes:
        return self._store.get(f"{self._folder}/{path}")

    def _read_url(self, url: str) -> bytes:
        return self._get(url.removeprefix(f"{self._location}/"))

    def _foreign(self, path: str, told: str) -> ForeignCommit:
        remedy = (
            f"{told}. To publish again, switch publishing of the table off, move the folder"
            f" {self._folder}/metadata elsewhere, and switch publishing on"
        )
        return ForeignCommit(self.name, self._key, f"{self._folder}/{path}", remedy)

    def publish(self, steps: Sequence[Step], *, retain_s: float) -> Head:
        """Publish steps, those with the same kind of change as one snapshot; see ``Format``."""
        if self._known is None:
            self._known = self._read()
        base = self._known
        number = 0 if base is None else base.published.place.number
        steps = [step for step in steps if step.place.number > number]
        if steps:
            if not steps[0].complete and (base is None or steps[0].place.number != number + 1):
                raise Overtaken
            reasons = [self.unsupported(step.definition) for step in steps]
            ready = next((n for n, told in enumerate(reasons) if told), len(steps))
            if ready:
                self._known = base = self._commit(base, steps[:ready], retain_s)
            if ready < len(steps):
                raise NotPublishable(self.name, self._key, reasons[ready])
        if base is None:
            raise ValueError("no step is given, and nothing is published yet")
        self._hint(base.published.k)
        return self._head(base.published)

    def _commit(self, base: _Table | None, steps: Sequence[Step], retain_s: float) -> _Table:
        before = None if base is None else base.published
        manifests = () if base is None else base.manifests
        snapshots = [] if before is None else before.snapshots
        first_schema_id = None if before is None else before.first_schema_id
        for operation, step in grouped(steps, new=before is None):
            if step.definition.first_schema_id != first_schema_id:
                # The names of earlier columns may be those of other columns now.
                snapshots, first_schema_id = [], step.definition.first_schema_id
                step = replace(step, added=tuple(step.files()), removed=(), complete=True)
            parent = snapshots[-1] if snapshots else None
            manifests = self._write_manifests(manifests, step)
            listed = encode_list(
                step.place.number,
                None if parent is None else parent["snapshot-id"],
                [each.file for each in manifests],
            )
            url = self._write("snap", step, listed)
            done = "append" if parent is None else operation
            snapshots = [*snapshots, snapshot_json(step, done, parent, url)]
        published = next_metadata(
            before, snapshots, steps, location=self._location, retain_s=retain_s
        )
        self._create(published)
        return _Table(published, manifests)

    def _write_manifests(self, held: Sequence[Held], step: Step) -> tuple[Held, ...]:
        writer = ManifestWriter(step.definition, self._location)
        try:
            planned = next_manifests(held, step, lambda each: self._files_of(each, step))
        except Mismatch as exc:
            raise self._foreign("metadata", f"does not match the table: {exc}") from exc
        written = []
        for each in planned:
            written.append(each if isinstance(each, Held) else self._new(writer, each, step))
        listed, there = sum(each.file.live for each in written), step.state.file_count
        if listed != there:
            told = f"does not match the table: it lists {listed} of {there} files"
            raise self._foreign("metadata", told)
        return tuple(written)

    def _new(self, writer: ManifestWriter, pending: Pending, step: Step) -> Held:
        number, spec_id, entries = step.place.number, pending.spec_id, pending.entries
        encoded = writer.encode(spec_id, number, entries)
        url = self._write("manifest", step, encoded.data)
        file = writer.described(url, len(encoded.data), spec_id, number, entries)
        if file.live >= full(step) and not (step.definition.keyed or file.deleted.files):
            return Held(file)  # its content is hardly needed again
        live = (entry for entry in entries if entry.status != DELETED)
        return Held(file, {entry.file.add.path: entry.added_in for entry in live}, encoded)

    def _write(self, kind: str, step: Step, data: bytes) -> str:
        checksum = hashlib.sha256(data).hexdigest()[:16]
        path = f"metadata/{kind}-{step.place.number:020d}-{checksum}.avro"
        with suppress(AlreadyExists):
            self._store.create(f"{self._folder}/{path}", data)
        return f"{self._location}/{path}"

    def _files_of(self, held: Held, step: Step) -> dict[str, int]:
        if held.added_in is None:
            # A switch removes files of another table version, in another folder than the step's.
            prefix, files = f"{self._location}/", step.state.files
            found = decode_entries(self._read_url(held.file.path))
            held.added_in = {}
            for url, number in found.items():
                path = url.removeprefix(prefix).partition("/")[2]
                held.added_in[files[path].path if path in files else path] = number
        return held.added_in

    def _create(self, published: Published) -> None:
        """Create the metadata file: the commit."""
        k, data = published.k, msgspec.json.encode(published.content)
        path = f"{self._folder}/{metadata_path(k)}"
        created = True
        try:
            self._store.create(path, data)
        except AlreadyExists:
            created = False
            self._check_equal(path, data)
        if k > 1 and not self._exists(metadata_path(k - 1)):
            if created:
                self._store.delete(path)
            self._known = None
            raise Overtaken

    def _check_equal(self, path: str, data: bytes) -> None:
        """A lost answer, or a publisher that did the same: else another one was faster."""
        with suppress(ObjectNotFound):
            if self._store.get(path) == data:
                return
        self._known = None
        self._known = self._read()  # may be foreign
        raise Overtaken

    def _hint(self, k: int) -> None:
        """Write the number for readers that have no catalogue."""
        while self._hinted != k:
            self._store.put(f"{self._folder}/metadata/version-hint.text", str(k).encode())
            self._hinted = k
            # The hint of another publisher may have been replaced by this one.
            if not self._is_newest(k) and (newest := self._newest()) is not None:
                k = newest[0].k

    def clean_up(self, *, retain_s: float, grace_s: float) -> int:
        """Delete old metadata files, and lists and manifests of dropped snapshots; see ``Format``.

        Objects with other names are left alone.
        """
        infos = list(self._store.list(f"{self._folder}/metadata/"))
        try:
            numbered = self._metadata_files(infos)
            if self._known is not None and self._known.published.k < max(numbered, default=0):
                self._known = None
            if self.head() is None or self._known is None:
                return 0
        except ForeignCommit:
            return 0  # publishing says so
        published = self._known.published
        self._hint(published.k)
        old = [numbered[k].path for k in sorted(numbered) if k < published.k - KEPT_METADATA]
        for path in old:  # in ascending order: see _create
            self._store.delete(path)
        needed = self._needed(published.snapshots)
        horizon = self._store.now() - timedelta(seconds=grace_s)
        number = published.place.number
        leftover = [
            info.path
            for info in infos
            if info.path not in needed and info.at < horizon and _is_of_earlier(info, number)
        ]
        delete_all(self._store, leftover)
        return len(old) + len(leftover)

    def _needed(self, snapshots: Sequence[Json]) -> set[str]:
        """The paths of the lists and manifests of these snapshots."""
        urls = [snapshot["manifest-list"] for snapshot in snapshots]
        self._listed = {url: self._listed.get(url) or self._manifests_of(url) for url in urls}
        needed = chain(urls, *self._listed.values())
        return {url.removeprefix(f"{self._store.url}/") for url in needed}

    def _manifests_of(self, url: str) -> list[str]:
        try:
            return [each.path for each in decode_list(self._read_url(url))]
        except ObjectNotFound:  # of an older snapshot; nobody can read that
            return []


def _is_of_earlier(info: ObjectInfo, number: int) -> bool:
    """Whether the object is a list or manifest that was written for ``number`` or an earlier one.

    Only of these it is known that no publisher is about to use them.
    """
    match = _OURS.fullmatch(info.path.rsplit("/", 1)[1])
    return match is not None and int(match[1]) <= number


def grouped(steps: Sequence[Step], *, new: bool) -> list[tuple[Operation, Step]]:
    """The steps, with consecutive ones of the same kind of change joined.

    Args:
        new: nothing is published yet.
    """
    groups: list[tuple[Operation | None, Step]] = []
    for step in steps:
        kind: Operation | None = "append" if new and not groups else _kind(step)
        before = groups[-1][0] if groups else None
        if groups and (kind is None or before is None or kind == before):
            groups[-1] = (before or kind, joined(groups[-1][1], step))
        else:
            groups.append((kind, step))
    return [(kind or "append", step) for kind, step in groups]


def _kind(step: Step) -> Operation | None:
    if step.complete:
        return "overwrite"
    if step.rearranged:
        return "replace"
    if not step.removed:
        return "append" if step.added else None
    return "overwrite" if step.added else "delete"
