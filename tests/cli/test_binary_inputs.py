"""Damaged Parquet and Arrow files end in one clear line, never in a traceback."""

import base64
import io
import os
import subprocess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pyarrow.parquet.encryption as encryption
import pytest

from ingester.cli.exits import CommandFailed
from ingester.cli.input.files import opened
from ingester.cli.input.source import text_options
from tests.cli.conftest import Run, check_refused

PLAIN = pa.table({"abcd": [1, 2, 3]})
NESTED = pa.table({"outer": [{"abcd": 1}]})
TEXTS = text_options(None, None, None, False, None)


def as_bytes(kind: str, table: pa.Table = PLAIN, **options: Any) -> bytes:
    """Return the table as a file of this kind."""
    target = io.BytesIO()
    if kind == "parquet":
        pyarrow.parquet.write_table(table, target, **options)
    else:
        open_writer = pa.ipc.new_file if kind == "arrow" else pa.ipc.new_stream
        with open_writer(target, table.schema) as writer:
            writer.write_table(table)
    return target.getvalue()


def renamed(data: bytes) -> bytes:
    """Replace a name by one that is not UTF-8."""
    assert b"abcd" in data
    return data.replace(b"abcd", b"ab\xff\xfe")


def encrypted() -> bytes:
    """Return a Parquet file whose footer is encrypted, too."""

    class Keys(encryption.KmsClient):  # type: ignore[misc]
        def __init__(self, config: object) -> None:
            super().__init__()

        def wrap_key(self, key: bytes, name: str) -> bytes:
            return base64.b64encode(key)

        def unwrap_key(self, key: bytes, name: str) -> bytes:
            return base64.b64decode(key)

    target = io.BytesIO()
    wanted = encryption.EncryptionConfiguration(
        footer_key="f", column_keys={"c": ["abcd"]}, double_wrapping=False
    )
    properties = encryption.CryptoFactory(Keys).file_encryption_properties(
        encryption.KmsConnectionConfig(), wanted
    )
    with pyarrow.parquet.ParquetWriter(
        target, PLAIN.schema, encryption_properties=properties
    ) as writer:
        writer.write_table(PLAIN)
    return target.getvalue()


@pytest.mark.parametrize(
    ("kind", "data", "message"),
    [
        ("parquet", renamed(as_bytes("parquet")), "a column name is not UTF-8"),
        ("parquet", renamed(as_bytes("parquet", store_schema=False)), "b'ab\\xff\\xfe'"),
        ("parquet", renamed(as_bytes("parquet", NESTED, store_schema=False)), "not UTF-8"),
        ("arrow", renamed(as_bytes("arrow")), "not UTF-8"),
        ("arrow", renamed(as_bytes("stream")), "not UTF-8"),
        ("arrow", renamed(as_bytes("stream", NESTED)), "not UTF-8"),
        ("parquet", encrypted(), "encrypted files are not supported"),
        ("parquet", b"", "it is empty"),
        ("arrow", b"", "it is empty"),
        ("parquet", as_bytes("parquet")[:-20], "magic bytes not found"),
        ("parquet", as_bytes("parquet")[:-8] + b"\xff\xff\xff\x7fPAR1", "smaller than the size"),
        ("parquet", b"PAR1" + bytes(60) + as_bytes("parquet")[64:], "thrift"),
        ("parquet", as_bytes("arrow"), "magic bytes not found"),
        ("arrow", as_bytes("parquet"), "cannot read"),
        ("arrow", as_bytes("stream")[:150], "cannot read"),
    ],
)
def test_an_unreadable_file_is_named_with_the_reason(
    tmp_path: Path, kind: str, data: bytes, message: str
) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(data)
    with (
        pytest.raises(CommandFailed) as failed,
        opened(str(path), kind, None, TEXTS) as file,
    ):
        list(file.batches(10))
    assert str(failed.value).startswith(f"cannot read {path}: ")
    assert message in str(failed.value)


def test_names_that_are_not_utf8_give_a_one_line_error(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(renamed(as_bytes("parquet")))
    check_refused(run("write", "n", "names", "a.parquet"), 1, "a column name is not UTF-8")
    (tmp_path / "b.parquet").mkdir()
    check_refused(run("write", "n", "names", "b.parquet"), 1, "b.parquet: Is a directory")


@pytest.mark.parametrize("kind", ["parquet", "arrow", "stream", "csv", "jsonl"])
def test_a_named_pipe_is_read_like_standard_input(tmp_path: Path, kind: str) -> None:
    data = {"csv": b"abcd\n1\n2\n3\n", "jsonl": b'{"abcd":1}\n{"abcd":2}\n{"abcd":3}\n'}.get(kind)
    whole = tmp_path / "whole"
    whole.write_bytes(data or as_bytes(kind))
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(f"cat {whole} > {pipe}", shell=True) as writer:
        with opened(str(pipe), "arrow" if kind == "stream" else kind, None, TEXTS) as file:
            assert [b.to_pydict() for b in file.batches(10)] == [PLAIN.to_pydict()]
        assert writer.wait() == 0


def test_only_the_needed_part_of_a_parquet_file_is_read(tmp_path: Path) -> None:
    """With read-ahead the whole file would be in memory by the end."""
    table = pa.table({f"c{n}": pa.array(os.urandom(8) for _ in range(160_000)) for n in range(2)})
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(table, path, row_group_size=2_000, use_dictionary=False)
    with opened(str(path), "parquet", None, TEXTS) as file:
        before = bytes_read()
        next(file.batches(1_000))
        assert bytes_read() - before < path.stat().st_size / 4


def bytes_read() -> int:
    """Return the bytes read by this process so far, by all calls."""
    first = Path("/proc/self/io").read_text().splitlines()[0]
    return int(first.removeprefix("rchar: "))
