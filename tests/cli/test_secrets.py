"""A secret is planted wherever one may be, and no output contains it."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from ingester.client import ConnectionOptions
from ingester.config.sources import load, shown_values
from ingester.errors import BadRequest, InternalFailure
from ingester.observability.logs import configure_logs
from ingester.pushes.config import push_config
from ingester.secret_texts import masked
from ingester.server.flight.refusals import error_json, flight_error
from tests.cli.conftest import run_command

SECRET = "hunter2-S3cr3t"
GONE = "127.0.0.1:1"
"""An address where no process listens."""
S3 = {
    "INGESTER_STORE": "s3://bucket/prefix",
    "INGESTER_STORE_OPTIONS__ENDPOINT_URL": f"http://{GONE}",
    "INGESTER_STORE_OPTIONS__KEY": SECRET,
    "INGESTER_STORE_OPTIONS__SECRET": SECRET,
    "INGESTER_STORE_OPTIONS__TOKEN": SECRET,
}
OPTIONS = {
    "secret": SECRET,
    "client_kwargs": {"aws_secret_access_key": SECRET, "region_name": "eu"},
    "headers": {"Authorization": f"Bearer {SECRET}"},
    "sas": SECRET,
    "connection_string": f"AccountKey={SECRET}",
    "endpoint_url": f"https://u:{SECRET}@h/x",
}
DSNS = [
    f"postgresql://u:{SECRET}@{GONE}/db",
    f"postgresql://u:{SECRET}@127.0.0.1:badport/db",
    f"postgresql://u:{SECRET}/b@{GONE}/db",
    f"postgresql://u:a@{SECRET}@{GONE}/db",
    f"postgresql://u:%zz{SECRET}@{GONE}/db",
    f"postgresql://u@{GONE}/db?password={SECRET}&no={SECRET}",
    f"host=127.0.0.1 port=1 password={SECRET}",
    f"host=127.0.0.1 port=1 password='{SECRET}",
    f"host=127.0.0.1 port=1 password={SECRET} nonsense",
]
FILES = {
    "dsn": f"host=127.0.0.1 port=1 password={SECRET}\n",
    "text.toml": f'store_options = "{SECRET}"\n',
    "bare.toml": f"[store_options]\nsecret = {SECRET}\n",
    "list.toml": f'store = "s3://b/p"\n[store_options]\nsecret = ["{SECRET}"]\n',
    "unknown.toml": f'store = "s3://b/p"\n[store_options]\nsecrt_key = "{SECRET}"\n',
    "badpushes.toml": f'[regions.a]\nurl = 5\nstore_options = "{SECRET}"\n',
}


def runs() -> Iterator[tuple[list[str], dict[str, str]]]:
    """Commands that receive the secret, and its source."""
    yield ["config"], S3
    yield ["config", "--json"], {"INGESTER_STORE_OPTIONS": json.dumps(OPTIONS)}
    yield ["config"], {"INGESTER_STORE_OPTIONS": SECRET}
    yield ["config"], {"INGESTER_STORE_OPTIONS": f'{{"secret": "{SECRET}"'}
    yield ["config"], {"INGESTER_STORE": f"s3://u:{SECRET}@h/b"}
    yield ["config"], {"INGESTER_STORE": f"https://u:{SECRET}/x@h/b"}
    nested = {"INGESTER_STORE_OPTIONS__A": SECRET, "INGESTER_STORE_OPTIONS__A__B": SECRET}
    yield ["config"], nested
    yield ["serve", "--data-dir", "d"], {"INGESTER_STORE": f"s3://u:{SECRET}@h/b"}
    yield ["wal", "adopt", ".", "--config", "list.toml"], {}
    for file in ("text", "bare", "list", "unknown"):
        yield ["config", "--config", f"{file}.toml"], {}
    yield ["serve", "--data-dir", "d", "--config", "unknown.toml"], {}
    yield ["manifest", "show", "s3://b/p", "--config", "list.toml"], {}
    yield ["manifest", "show", f"s3://u:{SECRET}@b/p"], {}
    yield ["pushes", "list", "--config", "badpushes.toml"], {}
    for dsn in DSNS:
        yield ["replicate", "postgres", dsn, "n", "--check"], {}
    for dsn in ("env:DSN", "file:dsn"):
        named = {"DSN": f"host=127.0.0.1 port=1 password={SECRET}"}
        yield ["replicate", "postgres", dsn, "n", "--check"], named
    yield ["replicate", "postgres", "env:MISSING", "n", "--check"], {"DSN": SECRET}
    yield ["tables"], {"INGESTER_TOKEN": f"two words {SECRET}"}
    yield ["tables", "--endpoint", f"grpc://u:{SECRET}@{GONE}"], {}
    yield ["tables", "--endpoint", f"nonsense://u:{SECRET}@{GONE}"], {}
    yield ["tables", "--endpoint", f"grpc://{GONE}"], {"INGESTER_TOKEN": SECRET}


def test_no_command_prints_a_given_secret(tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    faults = []
    for arguments, environment in runs():
        done = run_command(*arguments, cwd=tmp_path, endpoint=None, stdin=b"", **environment)
        said = (done.stdout + done.stderr).decode()
        if SECRET in said or "S3cr3t" in said or not said or "Traceback" in said:
            faults.append((arguments, sorted(environment), said[-300:]))
    assert faults == []


def test_a_dsn_is_read_from_a_variable_or_a_file(tmp_path: Path) -> None:
    (tmp_path / "dsn").write_text("host=127.0.0.1 port=1 user=u\n")
    for dsn, variables in (("env:D", {"D": "host=127.0.0.1 port=1 user=u"}), ("file:dsn", {})):
        command = ["replicate", "postgres", dsn, "n", "--check"]
        done = run_command(*command, cwd=tmp_path, endpoint=None, stdin=b"", **variables)
        assert (done.returncode, b"port 1 failed" in done.stderr) == (3, True), done.stderr
    gone = run_command("replicate", "verify", "file:gone", "n", cwd=tmp_path)
    assert (gone.returncode, b"DSN: " in gone.stderr) == (2, True), gone.stderr


def test_unknown_option_values_are_not_shown() -> None:
    settings = load({}, {"INGESTER_STORE_OPTIONS": json.dumps(OPTIONS)}).settings
    shown = shown_values(settings)["store_options"]
    assert shown == {
        "secret": "***",
        "client_kwargs": {"aws_secret_access_key": "***", "region_name": "eu"},
        "headers": {"Authorization": "***"},
        "sas": "***",
        "connection_string": "***",
        "endpoint_url": "https://***@h/x",
    }


@pytest.fixture
def _restored_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield
    logging.captureWarnings(False)
    root.handlers, root.level = handlers, level
    structlog.reset_defaults()


@pytest.mark.usefixtures("_restored_logging")
def test_no_output_contains_a_known_secret() -> None:
    settings = load({}, {"INGESTER_STORE_OPTIONS__SECRET": SECRET}).settings
    region = {"url": "s3://b/p", "store_options": {"secret": "env:REGION"}}
    regions = push_config({"regions": {"a": region}}, {"REGION": f"{SECRET}-2"})
    assert SECRET not in repr(settings) + str(settings)
    assert SECRET not in repr(regions) + repr(ConnectionOptions(token=SECRET))

    def fail() -> None:
        try:
            raise OSError(f"InvalidAccessKeyId: {SECRET}")
        except OSError as exc:
            raise ValueError(f"the store said no to {SECRET}") from exc

    for style in ("json", "console"):
        out = io.StringIO()
        recent = configure_logs(style=style, stream=out)
        log = structlog.get_logger()
        log.warning(f"store {SECRET}", options={"a": [SECRET]}, one=SECRET, error=OSError(SECRET))
        logging.getLogger("botocore").warning("%s", SECRET)
        try:
            fail()
        except ValueError:
            log.exception("failed", runbook="unlisted")
        assert out.getvalue().count("***") >= 6
        assert SECRET not in out.getvalue()
        assert not [each for each in recent.newest_first() if SECRET in repr(each)]
    for error in (InternalFailure(f"a {SECRET}"), BadRequest(SECRET), OSError(SECRET)):
        assert SECRET not in str(flight_error(error)) + repr(flight_error(error).args)
    assert SECRET.encode() not in error_json(BadRequest(SECRET))


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("GET http://me:a/b@c@h:80/x?y", "GET http://***@h:80/x?y"),
        ("at http://h:8080/a@b", "at http://h:8080/a@b"),
        ("s3://bucket/a@b", "s3://bucket/a@b"),
        ("igt_12ab_Zm9v-YmFy_x was sent", "igt_12ab_*** was sent"),
        ("Authorization: Bearer abcdefgh.ijklmnop", "Authorization: Bearer ***"),
        ("authorization: basic dXNlcjpwYXNzd29yZA==", "authorization: basic ***"),
        ("a basic reference, a bearer header", "a basic reference, a bearer header"),
        ("host=h password='a b\\' c' user=u", "host=h password=*** user=u"),
        ("https://h/o?X-Amz-Signature=abc&n=1", "https://h/o?X-Amz-Signature=***&n=1"),
        ("SignedHeaders=host, Signature=8ade", "SignedHeaders=host, Signature=***"),
        (
            "{'X-Amz-Security-Token': b'FwoG/x=', 'n': 1}",
            "{'X-Amz-Security-Token': b'***', 'n': 1}",
        ),
        ("x-amz-security-token:FwoG/x=", "x-amz-security-token:***"),
        (
            "{'x-amz-server-side-encryption-customer-key': 'c2Vj='}",
            "{'x-amz-server-side-encryption-customer-key': '***'}",
        ),
    ],
)
def test_a_secret_is_recognised_by_its_form(said: str, shown: str) -> None:
    assert masked(said) == shown


def test_an_adversarial_text_is_searched_in_linear_time() -> None:
    for piece in (
        "a://a:",
        "password='",
        "bearer ",
        "igt_a_",
        "x://",
        "sig=",
        "a-customer-key",
        "cookie:",
    ):
        # Quadratic cost would take minutes.
        assert masked(piece * 40_000).count("\n") == 0
