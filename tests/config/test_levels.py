"""The acknowledgement level of tables and streams by the daemon's settings."""

import pytest

from ingester.config.levels import AckLevels, parse_level
from ingester.config.settings import (
    Level,
    NamespaceSettings,
    Settings,
    TableSettings,
    WalSettings,
)
from ingester.errors import BadRequest


@pytest.mark.parametrize(
    ("key", "own", "level"),
    [
        (("else", "t"), None, "disk"),
        (("else", "t"), "store", "store"),
        (("shop", "t"), None, "store"),
        (("shop", "t"), "disk", "disk"),
        (("shop", "low"), "store", "disk"),
        (("shop", "plain"), None, "store"),
        (("else", "high"), "disk", "store"),
    ],
)
def test_the_nearest_setting_decides_at_which_level_a_table_is(
    key: tuple[str, str], own: Level | None, level: Level
) -> None:
    settings = Settings(
        namespaces={"shop": NamespaceSettings(ack="store")},
        tables={
            "shop/low": TableSettings(ack="disk"),
            "shop/plain": TableSettings(transformers=[]),
            "else/high": TableSettings(ack="store"),
        },
    )
    assert AckLevels(settings).level(key, own) == level


def test_the_daemons_level_holds_where_nothing_nearer_is_set() -> None:
    levels = AckLevels(Settings(ack="store", namespaces={"shop": NamespaceSettings(ack="disk")}))
    assert levels.level(("a", "t"), None) == "store"
    assert levels.level(("shop", "t"), None) == "disk"


def test_a_stream_may_ask_for_more_than_its_table_and_not_for_less() -> None:
    levels, key = AckLevels(Settings()), ("shop", "orders")
    assert [levels.at_store(key, None, asked) for asked in (None, "disk", "store")] == [
        False, False, True,
    ]  # fmt: skip
    assert levels.at_store(key, "store") and levels.at_store(key, "store", "store")
    with pytest.raises(BadRequest, match="table shop/orders has level 'store'"):
        levels.at_store(key, "store", "disk")


def test_without_a_log_on_the_disk_all_is_at_store_and_a_request_for_disk_names_the_setting() -> (
    None
):
    levels, key = AckLevels(Settings(wal=WalSettings(disk="off"))), ("shop", "orders")
    assert levels.level(key, None) == "store"
    assert levels.level(key, "disk") == "store", "another daemon may have created it"
    assert levels.at_store(key, "disk") and levels.at_store(key, None, "store")
    with pytest.raises(BadRequest, match=r"wal\.disk is 'off'"):
        levels.at_store(key, None, "disk")
    with pytest.raises(BadRequest, match=r"wal\.disk is 'off'"):
        levels.check_disk("disk")


def test_only_levels_are_read_as_levels() -> None:
    assert [parse_level("descriptor", text) for text in (None, "disk", "store")] == [
        None, "disk", "store",
    ]  # fmt: skip
    for text in ("", "Store", "memory"):
        with pytest.raises(BadRequest, match="descriptor: ack must be one of disk, store"):
            parse_level("descriptor", text)
