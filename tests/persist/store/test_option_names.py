"""Every interface takes a store's options as ``store_options``, and under their earlier names."""

import runpy
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ingester import spark
from ingester.client import ClientError
from ingester.followers import Follower
from ingester.pushes.config import PushConfigError, push_config
from ingester.spark import compact, expire, read_table, rewrite
from ingester.spark.options import SourceOptions

NO_SPARK: Any = None  # refused before it is used
URL = "file:///srv/lake"
TABLE = (URL, "sensors", "readings")
GIVEN = {"endpoint_url": "http://h"}
ARRIVED = r"file:// takes no store options, got \['endpoint_url'\]"
"""The answer of a local store, which takes no options and names those that it was given."""


def _no_sink(table: object) -> Any:
    raise AssertionError(table)


def _follow(**options: Any) -> None:
    follower = Follower("grpc://127.0.0.1:9", _no_sink, URL, **options)
    follower.follow("sensors", "readings")
    follower.start()


def _source(**options: Any) -> None:
    given = dict(zip(("url", "namespace", "table"), TABLE, strict=True))
    for name, value in options.items():
        prefix = {"store_options": "store_options", "storage_options": "storage"}[name]
        given |= {f"{prefix}.{key}": text for key, text in value.items()}
    SourceOptions.read(given).manifest()


ENTRANCES: dict[str, Callable[..., Any]] = {
    "read_table": partial(read_table, NO_SPARK, *TABLE),
    "compact": partial(compact, NO_SPARK, *TABLE),
    "rewrite": partial(rewrite, NO_SPARK, *TABLE),
    "expire": partial(expire, *TABLE),
    "Follower": _follow,
    "the data source": _source,
}


@pytest.mark.parametrize("entrance", ENTRANCES)
@pytest.mark.parametrize("name", ["store_options", "storage_options"])
def test_options_arrive_under_their_name_and_their_earlier_one(entrance: str, name: str) -> None:
    with pytest.raises((ValueError, ClientError), match=ARRIVED):
        ENTRANCES[entrance](**{name: GIVEN})


@pytest.mark.parametrize("entrance", ENTRANCES)
def test_both_names_are_refused_with_the_one_to_keep(entrance: str) -> None:
    dotted = ".endpoint_url" if entrance == "the data source" else ""
    earlier = f"storage{dotted}" if dotted else "storage_options"
    refused = (
        f"{earlier} is the earlier name of store_options{dotted}: give store_options{dotted} only"
    )
    with pytest.raises(ValueError, match=refused):
        ENTRANCES[entrance](store_options=GIVEN, storage_options=GIVEN)


def _region(**options: Mapping[str, str]) -> Mapping[str, Any]:
    config = push_config({"regions": {"a": {"url": URL, **options}}}, {"KEY": "k"})
    return config.region("a").store_options


def test_a_region_of_a_push_takes_both_names_and_refuses_them_together() -> None:
    secret = {"key": "env:KEY"}
    assert _region(store_options=secret) == _region(storage_options=secret) == {"key": "k"}
    refused = "regions.a: storage_options is the earlier name of store_options"
    with pytest.raises(PushConfigError, match=refused):
        _region(store_options=secret, storage_options=secret)


def test_the_compaction_job_takes_both_flags_and_refuses_them_together(
    capsys: pytest.CaptureFixture[str],
) -> None:
    # Run as a file, because an import of the module would hide the function of that name.
    job = runpy.run_path(str(Path(spark.__file__).with_name("compact.py")))
    main, asked_of = job["main"], job["asked_of"]
    for flag in ("--store-option", "--storage-option"):
        assert main([*TABLE, flag, "endpoint_url=http://h"]) == 1
        assert "takes no store options, got ['endpoint_url']" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        asked_of([*TABLE, "--store-option", "key=a", "--storage-option", "secret=b"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert (
        "--storage-option is the earlier name of --store-option: give --store-option only" in said
    )
