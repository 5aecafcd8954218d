"""Settings: the precedence of sources, refused values, and the names in messages."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingester.config.settings import (
    OPEN_FORMATS,
    ConfigError,
    MemorySettings,
    Settings,
    WalSettings,
    split_address,
)
from ingester.config.sources import endpoint, known_keys, load, shown_values
from ingester.config.units import format_duration, format_size, parse_duration, parse_size
from ingester.memory.machine import usable_bytes
from ingester.secret_texts import masked
from persist.publish.format import FORMATS
from persist.store import open_store

MiB = 1024**2


def test_the_defaults_are_those_of_the_contract() -> None:
    settings = load({}, {}).settings
    assert settings.data_dir == Path("ingester-data")
    assert settings.store_url == f"file://{Path.cwd()}/ingester-data/store"
    assert (settings.flight.listen, settings.http.listen) == ("127.0.0.1:8082", "127.0.0.1:8080")
    assert (settings.flight.max_batch_bytes, settings.flight.max_unanswered) == (64 * MiB, 1024)
    assert (settings.wal.fsync, settings.wal.segment_bytes) == ("commit", 64 * MiB)
    assert (settings.wal.segment_age, settings.persist.max_age) == (300.0, 300.0)
    assert (settings.persist.workers, settings.persist.queue_bytes) == (2, 512 * MiB)
    assert settings.persist.target_file_bytes == 128 * MiB
    assert settings.memory.limit == usable_bytes() // 2
    assert (settings.query.max_streams, settings.query.client_timeout) == (1000, 60.0)
    assert (settings.manifest.refresh, settings.manifest.retain) == (1.0, 86400.0)
    assert (settings.manifest.orphan_grace, settings.auto_create) == (3600.0, True)


def test_flags_beat_environment_beats_file_beats_default(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text('[persist]\nmax_age = "1m"\nworkers = 3\nqueue_bytes = "1MiB"\n')
    environ = {"INGESTER_PERSIST__MAX_AGE": "2s", "INGESTER_PERSIST__WORKERS": "4"}
    loaded = load({"persist.max_age": 7.5, "store": None}, environ, file)
    persist = loaded.settings.persist
    assert (persist.max_age, persist.workers, persist.queue_bytes) == (7.5, 4, MiB)
    assert loaded.origins["persist.max_age"] == "flag"
    assert loaded.origins["persist.workers"] == "environment INGESTER_PERSIST__WORKERS"
    assert loaded.origins["persist.queue_bytes"] == f"file {file}"
    assert loaded.origins["store"] == "default"


@pytest.mark.parametrize(
    ("environ", "toml", "message"),
    [
        ({"INGESTER_PERSIST__MAXAGE": "2s"}, "", "did you mean INGESTER_PERSIST__MAX_AGE"),
        ({}, '[persist]\nmax_aeg = "1s"', r"persist\.max_aeg: unknown.*persist\.max_age\?"),
        ({}, "[perist]\nx = 1", "perist: unknown setting"),
        ({}, "persist = 3", "persist: 3 is not a table"),
        ({}, "x = ", "cannot read the settings"),
        ({"INGESTER_PERSIST__WORKERS": "0"}, "", r"persist\.workers: 0 is out of range"),
        ({"INGESTER_PERSIST__WORKERS": "two"}, "", r"persist\.workers: .*'two'"),
        ({"INGESTER_WAL__FSYNC": "always"}, "", r"wal\.fsync: 'always' is not one of 'commit'"),
        ({"INGESTER_WAL__SEGMENT_BYTES": "64Mb"}, "", r"wal\.segment_bytes: not a size: '64Mb'"),
        ({"INGESTER_WAL__SEGMENT_AGE": "5 min"}, "", r"wal\.segment_age: not a duration: '5 min'"),
        ({"INGESTER_FLIGHT__LISTEN": "8082"}, "", r"flight\.listen: '8082' is not HOST:PORT"),
        ({"INGESTER_AUTO_CREATE": "maybe"}, "", "auto_create: 'maybe' is not true or false"),
        ({"INGESTER_ID": "a/b"}, "", "id: 'a/b'"),
        ({"INGESTER_STORE": ""}, "", "store: is empty.*INGESTER_STORE"),
        ({}, 'data_dir = " "', "data_dir: is empty"),
        ({"INGESTER_MEMORY__HIGH": "120%"}, "", r"memory\.high: .* out of range"),
        ({"INGESTER_MEMORY__LOW": "0"}, "", r"memory\.low: '0' is out of range"),
        (
            {},
            '[publish]\nformats = ["ice"]',
            r"publish\.formats: 'ice' is not one of",
        ),
        ({}, '[publish.acme]\nformats = ["x"]', r'publish\."acme"\.formats: .x. is not one of'),
        ({}, '[publish."a/b"]\nformats = []', "publish: 'a/b' is not a namespace"),
        ({}, '[tables."a/b"]\npublish = ["delta", "delta"]', "names a format twice"),
        ({}, "auto_create = 1", "auto_create: 1 is not a bool"),
        ({}, "[persist]\nworkers = true", r"persist\.workers: True is not a int"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(
    environ: dict[str, str], toml: str, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "c.toml"
    file.write_text(toml)
    with pytest.raises(ConfigError, match=message):
        load({}, environ, file)


def test_watermarks_are_percentages_of_the_limit_or_bytes() -> None:
    environ = {"INGESTER_MEMORY__LIMIT": "100MiB", "INGESTER_MEMORY__LOW": "20 %"}
    assert load({}, environ).settings.memory == MemorySettings(
        limit=100 * MiB, low=20 * MiB, high=90 * MiB
    )
    assert load({"memory.high": "64MiB"}, environ).settings.memory.high == 64 * MiB


def test_store_options_come_as_a_table_and_secrets_are_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text('store = "s3://b/p"\n[store_options]\nendpoint_url = "http://h"\nsecret = "x"')
    loaded = load({}, {}, file)
    assert loaded.settings.store_options == {"endpoint_url": "http://h", "secret": "x"}
    assert shown_values(loaded.settings)["store_options"] == {
        "endpoint_url": "http://h",
        "secret": "***",
    }
    nested = {"INGESTER_STORE_OPTIONS__CLIENT_KWARGS__ENDPOINT_URL": "http://h"}
    options = load({}, nested).settings.store_options
    assert options == {"client_kwargs": {"endpoint_url": "http://h"}}
    # Single options leave those of weaker sources; the whole table replaces them.
    environ = {"INGESTER_STORE_OPTIONS__SECRET": "y"}
    flags = {"store_options.region": "eu-central-1", "store_options.client_kwargs.verify": "ca"}
    assert load(flags, environ, file).settings.store_options == {
        "endpoint_url": "http://h",
        "secret": "y",
        "region": "eu-central-1",
        "client_kwargs": {"verify": "ca"},
    }
    whole = {"INGESTER_STORE_OPTIONS": '{"anon": true}'}
    assert load({}, whole, file).settings.store_options == {"anon": True}
    with pytest.raises(ConfigError, match="both a value and a table"):
        load({"store_options.secret": "x", "store_options.secret.y": "z"}, {})


def test_options_of_a_catalogue_are_a_table_too_and_its_secrets_are_not_shown(
    tmp_path: Path,
) -> None:
    file = tmp_path / "c.toml"
    file.write_text(
        '[catalog_options]\ntype = "rest"\nuri = "https://me:pass@c/api"\ntoken = "0123456789"\n'
        '"s3.access-key-id" = "AKIA"\ns3.region = "x"\n'
    )
    environ = {"INGESTER_CATALOG_OPTIONS__WAREHOUSE": "lake"}
    settings = load({"catalog_options.type": "sql"}, environ, file).settings
    assert settings.catalog_options["s3"] == {"region": "x"}
    assert shown_values(settings)["catalog_options"] == {
        "type": "sql",
        "uri": "https://***@c/api",
        "token": "***",
        "s3.access-key-id": "***",
        "s3": {"region": "x"},
        "warehouse": "lake",
    }
    assert masked("token 0123456789") == "token ***"


def test_what_kubernetes_adds_for_a_service_named_ingester_is_left_alone() -> None:
    environ = {
        "INGESTER_SERVICE_HOST": "10.0.0.1",
        "INGESTER_SERVICE_PORT_FLIGHT": "8082",
        "INGESTER_PORT": "tcp://10.0.0.1:8082",
        "INGESTER_PORT_8082_TCP_ADDR": "10.0.0.1",
        "INGESTER_ENDPOINT": "grpc://h:1",
    }
    assert set(load({}, environ).origins.values()) == {"default"}
    assert (endpoint(environ), endpoint({})) == ("grpc://h:1", "grpc://127.0.0.1:8082")


def test_every_shown_value_is_read_back_as_it_was(tmp_path: Path) -> None:
    first = load({"wal.fsync_interval": "7ms", "memory.limit": "1GB"}, {}).settings
    shown = {key: value for key, value in shown_values(first).items() if key != "data_dir"}
    assert set(shown) | {"data_dir"} == set(known_keys())
    assert load(shown, {}).settings.memory == first.memory
    assert load(shown, {}).settings.wal == first.wal


def test_structs_check_themselves() -> None:
    with pytest.raises(ConfigError, match=r"wal\.segment_bytes: 1 is out of range"):
        WalSettings(segment_bytes=1)
    assert Settings(store="/mnt/x").store_url == "file:///mnt/x"
    assert Settings(store="s3://b/p").store_url == "s3://b/p"


def test_addresses_are_host_and_port() -> None:
    assert split_address("0.0.0.0:0") == ("0.0.0.0", 0)
    assert split_address("[::1]:8080") == ("::1", 8080)
    for wrong in ("::1:80", "h", "h:", ":80", "h:65536", "h:-1", "h:x"):
        with pytest.raises(ValueError, match=r"is not HOST:PORT|in brackets"):
            split_address(wrong)


@given(st.integers(0, 2**60))
def test_a_shown_size_reads_back(size: int) -> None:
    assert parse_size(format_size(size)) == size


@given(st.floats(0, 1e9))
def test_a_shown_duration_reads_back(duration: float) -> None:
    shown = format_duration(duration)
    assert parse_duration(float(shown) if "e" in shown else shown) == pytest.approx(duration)


def test_sizes_and_durations_take_the_usual_forms() -> None:
    assert [parse_size(t) for t in ("64MiB", "1.5 KiB", "2GB", "7", 7)] == [
        64 * MiB,
        1536,
        2 * 10**9,
        7,
        7,
    ]
    durations = [parse_duration(t) for t in ("5m", "1h30m", "250ms", "2.5", 3, "1d")]
    assert durations == [300, 5400, 0.25, 2.5, 3, 86400]


def test_the_smallest_group_limit_counts(tmp_path: Path) -> None:
    groups = tmp_path / "cgroup"
    groups.write_text("0::/a/b\n")
    (tmp_path / "tree/a/b").mkdir(parents=True)
    (tmp_path / "tree/a/memory.max").write_text(f"{10 * MiB}\n")
    (tmp_path / "tree/a/b/memory.max").write_text("max\n")
    assert usable_bytes(groups, tmp_path / "tree") == 10 * MiB
    assert usable_bytes(tmp_path / "none", tmp_path / "tree") > 10 * MiB


TRANSFORMED = """
[tables."shop/visits"]
transformers = ["acme.rules:Clean", "acme.lib:Hide"]

[tables."shop/raw"]
transformers = []

[transform]
allowed = ["acme.*"]
timeout = "250ms"
"""


def test_tables_have_settings_of_their_own(tmp_path: Path) -> None:
    file = tmp_path / "ingester.toml"
    file.write_text(TRANSFORMED)
    loaded = load({}, {}, file).settings
    assert loaded.tables["shop/visits"].transformers == ["acme.rules:Clean", "acme.lib:Hide"]
    assert loaded.tables["shop/raw"].transformers == []
    assert loaded.transform.allowed == ["acme.*"]
    environment = {
        "INGESTER_TABLES": '{"shop/visits": {"transformers": ["acme.rules:Clean"]}}',
        "INGESTER_TRANSFORM__ALLOWED": "acme.rules, acme.lib.*",
    }
    loaded = load({}, environment, None).settings
    assert list(loaded.tables) == ["shop/visits"]
    assert loaded.transform.allowed == ["acme.rules", "acme.lib.*"]
    environment["INGESTER_TRANSFORM__ALLOWED"] = '["acme"]'
    assert load({}, environment, None).settings.transform.allowed == ["acme"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[tables."visits"]', "'visits' is not namespace/table"),
        ('[tables."a/b/c"]', "'a/b/c' is not namespace/table"),
        ('[tables."a/b"]\ntransformer = ["m:C"]', "'a/b': Object contains unknown field"),
        ('[tables."a/b"]\ntransformers = "m:C"', "'a/b': Expected `array | null`"),
        ('[tables."a/b"]\ntransformers = ["C"]', "'C' is not package.module:Class"),
        ('[tables."a/b"]\ntransformers = ["m:C", "m:C"]', "contain a class twice"),
        ("tables = 3", "3 is not a table"),
        ("[transform]\nallowed = 3", "transform.allowed: Expected `array`"),
        ("[transform]\nallowed = [3]", "transform.allowed: Expected `str`"),
        ("[transform]\nthreads = 0", "transform.threads: 0 is out of range"),
    ],
)
def test_settings_of_tables_that_cannot_be_are_refused_by_name(
    tmp_path: Path, text: str, words: str
) -> None:
    file = tmp_path / "ingester.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load({}, {}, file)
    assert words in str(caught.value)


@pytest.mark.parametrize("uncommented", [False, True])
def test_the_settings_of_the_page_on_s3_open_a_store(tmp_path: Path, uncommented: bool) -> None:
    page = (Path(__file__).parents[2] / "docs" / "s3.md").read_text()
    text = page.partition("```toml\n")[2].partition("```")[0]
    if uncommented:
        text = text.replace("\n# ", "\n")
        text = text.replace('\nkey = "AKIA…"', "").replace('\nsecret = "…"', "")
        text = text.replace('\nprofile = "lake"', "")  # of files that are not here
    file = tmp_path / "ingester.toml"
    file.write_text(text)
    settings = load({}, {}, file).settings
    store = open_store(settings.store_url, **settings.store_options)
    assert store.url == "s3://lake/prod"
    nested = {"s3_additional_kwargs", "config_kwargs"} & set(settings.store_options)
    assert bool(nested) is uncommented


def test_the_nearest_setting_decides_where_a_table_is_published(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text(
        '[publish]\nformats = ["iceberg"]\ninterval = "2s"\n'
        '[publish."acme"]\nformats = ["delta"]\n'
        '[tables."acme/off"]\npublish = []\n[tables."acme/both"]\npublish = ["iceberg", "delta"]\n'
        '[tables."acme/other"]\ntransformers = []\n'
    )
    settings = load({}, {}, file).settings
    assert settings.publish.interval == 2.0
    for namespace, table, own, formats in (
        ("else", "t", None, ("iceberg",)),
        ("else", "t", ("delta",), ("delta",)),
        ("else", "t", (), ()),
        ("acme", "t", None, ("delta",)),
        ("acme", "t", ("iceberg",), ("iceberg",)),
        ("acme", "other", None, ("delta",)),
        ("acme", "off", ("iceberg",), ()),
        ("acme", "both", (), ("iceberg", "delta")),
    ):
        assert settings.formats_of(namespace, table, own) == formats
    environ = {"INGESTER_PUBLISH__FORMATS": "iceberg, delta"}
    assert load({}, environ).settings.formats_of("a", "b") == FORMATS == OPEN_FORMATS
    assert load({}, {}).settings.formats_of("a", "b") == ()


def test_settings_of_the_log_in_the_store_have_a_section_below_that_of_the_log(
    tmp_path: Path,
) -> None:
    file = tmp_path / "c.toml"
    file.write_text('[wal]\nfsync = "off"\n[wal.store]\ninterval = "50ms"\n')
    loaded = load({}, {"INGESTER_WAL__STORE__MAX_BYTES": "1MiB"}, file)
    wal = loaded.settings.wal
    assert (wal.fsync, wal.store.interval, wal.store.max_bytes) == ("off", 0.05, MiB)
    assert loaded.origins["wal.store.interval"] == f"file {file}"
    assert shown_values(loaded.settings)["wal.store.max_bytes"] == "1MiB"
    with pytest.raises(ConfigError, match=r"wal\.store\.interval: 6s is out of range \(1ms to 5s"):
        load({"wal.store.interval": "6s"}, {})
    file.write_text("[wal]\nstore = 3\n")
    with pytest.raises(ConfigError, match=r"wal\.store: 3 is not a table .*; write \[wal\.store\]"):
        load({}, {}, file)
    file.write_text("[wal.store]\nintervall = 3\n")
    with pytest.raises(ConfigError, match=r"wal\.store\.intervall: unknown.*mean wal\.store\.int"):
        load({}, {}, file)


def test_without_a_log_on_the_disk_the_level_is_store_and_disk_is_refused_wherever_it_is_set(
    tmp_path: Path,
) -> None:
    shown = shown_values(load({"wal.disk": "off"}, {}).settings)
    assert (shown["ack"], shown_values(load({}, {}).settings)["ack"]) == ("store", "disk")
    file = tmp_path / "c.toml"
    for text, key in (
        ('ack = "disk"\n', "ack"),
        ('[namespaces.shop]\nack = "disk"\n', 'namespaces."shop".ack'),
        ('[tables."shop/orders"]\nack = "disk"\n', 'tables."shop/orders".ack'),
    ):
        file.write_text(text)
        assert load({}, {}, file).settings.wal.disk == "on"
        with pytest.raises(ConfigError) as caught:
            load({"wal.disk": "off"}, {}, file)
        assert str(caught.value) == (
            f"{key}: 'disk' needs a log on the disk, and wal.disk is 'off': use 'store'"
        )
        file.write_text(text.replace("disk", "store"))
        load({"wal.disk": "off"}, {}, file)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('ack = "memory"', "ack: 'memory' is not one of 'disk', 'store'"),
        ('[namespaces."a/b"]\nack = "store"', "namespaces: 'a/b' is not a namespace"),
        ('[namespaces.shop]\nack = "memory"', "namespaces: 'shop': Invalid enum value 'memory'"),
        ('[namespaces.shop]\nacks = "store"', "namespaces: 'shop': Object contains unknown field"),
        ('[tables."a/b"]\nack = "memory"', "tables: 'a/b': Invalid enum value 'memory'"),
        ('[wal]\ndisk = "none"', "wal.disk: 'none' is not one of 'on', 'off'"),
    ],
)
def test_levels_that_cannot_be_are_refused_by_name(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "c.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load({}, {}, file)
    assert words in str(caught.value)
