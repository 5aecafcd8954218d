"""Law: rows that no file can be made of, for whatever reason, stay ours and end nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
import trio

from ingester.uploading import CannotEncode, Uploader
from tests.integration.stage import AS_THEY_CAME, WRITER, Stage


def test_rows_that_do_not_fit_the_tables_version_cannot_be_encoded(tmp_path: Path) -> None:
    stage = Stage(tmp_path, AS_THEY_CAME)

    async def write() -> None:
        await stage.create()
        stage.write(10)

    trio.run(write)
    stage.tree.on_freeze = lambda handle, why: None
    handle = stage.tree.freeze(next(iter(stage.table.partitions.values())))
    assert handle is not None
    state = stage.table.state
    flags = stage.table.definition.with_schema(pa.schema({"filling": pa.bool_()})).schema_action()
    other = replace(state, current_schema=flags)
    uploader = Uploader(stage.store, WRITER, target_file_bytes=1 << 20)
    with pytest.raises(CannotEncode):
        uploader.upload(handle, other)
    assert not list((tmp_path / "store").rglob("*.parquet"))
    assert len(uploader.upload(handle, state).files.adds) == 1
