"""The files of a push's data, decided once and kept beside its records.

    _pushes/<push id>/data     what was written: zstd of msgpack, created once

Law of this file: of two drivers that have both written the data of a push, the one whose list is
created first has written it. Every region gets the files of that list, and those of the other
driver are garbage. So all regions have the same files, whatever driver is killed when.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pyarrow as pa

from ingester.pushes.push_store import FOLDER, RETRY, PushDamaged
from ingester.pushes.spark.task import WrittenFile
from persist.store import AlreadyExists, NotFound, ObjectStore, retry


class DataList(msgspec.Struct, frozen=True, kw_only=True):
    """What the tasks of a push have written.

    Attributes:
        places: The folder of the push's version in each region that was written to.
    """

    rows: int
    places: Mapping[str, str]
    files: tuple[WrittenFile, ...]

    @property
    def file_bytes(self) -> int:
        """The bytes of the files together, in one region."""
        return sum(file.add.bytes for file in self.files)

    @property
    def written(self) -> tuple[int, int, int]:
        """Rows, files and bytes."""
        return self.rows, len(self.files), self.file_bytes

    def complete_in(self, region: str) -> bool:
        """Whether all files were put into the region's store."""
        return region in self.places and self.count_in(region) == len(self.files)

    def count_in(self, region: str) -> int:
        """The number of files that were put into the region's store."""
        return sum(region in file.taken for file in self.files)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(DataList).decode
_CODEC = "zstd"
_LENGTH = 8


def read_data_list(store: ObjectStore, push_id: str) -> DataList | None:
    """Return the list that was decided on, None while there is none.

    Raises:
        PushDamaged: It cannot be read.
        StoreError: The store does not answer.
    """
    path = _path(push_id)
    try:
        data = retry(lambda: store.get(path), RETRY)
    except NotFound:
        return None
    try:
        size = int.from_bytes(data[:_LENGTH], "little")
        plain = pa.Codec(_CODEC).decompress(data[_LENGTH:], size, asbytes=True)
        return _decode(plain)
    except (msgspec.DecodeError, pa.ArrowException, OSError, ValueError, OverflowError) as exc:
        raise PushDamaged(f"{store.url}/{path}: {exc}") from exc


def decide(store: ObjectStore, push_id: str, written: DataList) -> DataList:
    """Keep a list, unless there is one, and return the one that counts.

    Raises:
        PushDamaged: There is one that cannot be read.
        StoreError: The store does not answer.
    """
    plain = _encode(written)
    packed = pa.Codec(_CODEC).compress(plain, asbytes=True)
    data = len(plain).to_bytes(_LENGTH, "little") + packed
    path = _path(push_id)

    def attempt() -> DataList:
        try:
            store.create(path, data)
        except AlreadyExists:
            found = read_data_list(store, push_id)
            assert found is not None
            return found
        return written

    return retry(attempt, RETRY)


def _path(push_id: str) -> str:
    return f"{FOLDER}/{push_id}/data"
