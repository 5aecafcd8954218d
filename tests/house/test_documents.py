"""References in the documents: links lead somewhere, and every warning has a runbook entry."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("wal", "persist", "ingester")
RUNBOOK = ROOT / "deploy" / "RUNBOOK.md"
MANIFESTS = ROOT / "deploy" / "kubernetes"
DOCUMENTS = sorted(
    [
        *ROOT.glob("*.md"),
        *(path for room in ("deploy", "docs", "tests") for path in (ROOT / room).rglob("*.md")),
    ]
)


def anchors(document: Path) -> set[str]:
    """The anchors of a Markdown file's headings, as GitHub generates them."""
    headings = re.findall(r"^#+ +(.*?)\s*$", document.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def log_calls() -> Iterator[tuple[str, ast.Call]]:
    """Each (where, call) of `log.warning`, `log.error`, `log.exception` and `log.critical`."""
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text())):
                if (
                    isinstance(node, ast.Call)
                    and isinstance(node.func, ast.Attribute)
                    and node.func.attr in {"warning", "error", "exception", "critical"}
                    and isinstance(node.func.value, ast.Name)
                    and node.func.value.id in {"log", "_log", "logger"}
                ):
                    yield f"{file.relative_to(ROOT)}:{node.lineno}", node


def test_every_warning_names_an_entry_of_the_runbook() -> None:
    calls = list(log_calls())
    assert calls, "no warning found in the code: is the logger still called log?"
    entries = anchors(RUNBOOK)
    strays = []
    for where, call in calls:
        named = [keyword.value for keyword in call.keywords if keyword.arg == "runbook"]
        # Computed names cannot be checked here.
        wrong = [v.value for v in named if isinstance(v, ast.Constant) and v.value not in entries]
        if wrong or not named:
            strays.append(f"{where}: {wrong or 'no runbook='}")
    assert strays == []


def test_every_entry_of_the_runbook_says_what_it_means_what_to_look_at_and_what_to_do() -> None:
    # Sections before the entries: where to look first, exit codes, procedures.
    sections = re.split(r"^## ", RUNBOOK.read_text(), flags=re.MULTILINE)[4:]
    assert len(sections) >= 15
    for section in sections:
        found = re.findall(r"^\*\*(.+?)\.\*\*", section, flags=re.MULTILINE)
        assert found == ["Means", "Look at", "Do"], section.splitlines()[0]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_local_link_leads_to_a_file_and_a_heading(document: Path) -> None:
    text = re.sub(r"```.*?```", "", document.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        linked = document.parent / path if path else document
        assert linked.exists(), target
        if anchor:
            assert anchor in anchors(linked), target


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_document_names_a_package_registry_or_a_folder_of_some_machine(document: Path) -> None:
    strays = (
        r"pypi|pythonhosted|maven\.org|/maven2|docker\.io|ghcr"
        r"|(?<![\w.])/(?:work|root|tmp|opt(?!/ingester))/"
    )
    assert re.findall(strays, document.read_text()) == []


def test_readme_is_a_front_page() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 250


def test_the_table_of_contents_names_every_page() -> None:
    contents = (ROOT / "docs" / "README.md").read_text()
    linked = set(re.findall(r"\]\(([^)#\s]+)\)", contents))
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    assert pages - {"README.md"} == {target for target in linked if not target.startswith("..")}


def test_the_page_of_replication_names_its_metrics() -> None:
    from ingester.observability.gauges import replication_metrics

    there = {
        metric.name + ("_total" if metric.type == "counter" else "")
        for metric in replication_metrics(())
    }
    page = (ROOT / "docs" / "replication.md").read_text()
    assert set(re.findall(r"ingester_replication_\w+", page)) == there


def test_the_sample_of_pushes_and_the_one_of_the_pods_are_read() -> None:
    from ingester.pushes.config import push_config
    from ingester.pushes.hook_loading import load_hooks

    named = {f"{city}_{kind}": "x" for city in ("BERLIN", "DUBLIN") for kind in ("KEY", "SECRET")}
    sample = (ROOT / "deploy" / "systemd" / "pushes.toml").read_text()
    for text in (sample, controller()[0]["data"]["pushes.toml"]):
        config = push_config(tomllib.loads(text), named)
        assert config.names == ("berlin", "dublin")
        assert load_hooks(config.hooks)


def test_the_controllers_unit_and_pods_start_the_command_as_it_is() -> None:
    unit = (ROOT / "deploy" / "systemd" / "ingester-controller.service").read_text()
    assert "RestartPreventExitStatus=2\n" in unit
    (started,) = re.findall(r"^ExecStart=\S+/ingester (.*)$", unit, re.M)
    spec = controller()[1]["spec"]["template"]["spec"]
    (pod,) = spec["containers"]
    options = ["--config", "/etc/ingester/pushes.toml", "--metrics"]
    assert started.split() == ["controller", *options, "127.0.0.1:8081"]
    assert pod["args"] == ["controller", *options, "0.0.0.0:8081", "--insecure"]
    assert pod["ports"] == [{"name": "http", "containerPort": 8081}]
    assert pod["volumeMounts"][0]["mountPath"] == "/etc/ingester"
    assert spec["volumes"][0]["configMap"] == {"name": controller()[0]["metadata"]["name"]}


def controller() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((MANIFESTS / "controller" / "controller.yaml").read_text()))


def test_the_replicators_unit_and_pod_start_the_command_as_it_is() -> None:
    unit = (ROOT / "deploy" / "systemd" / "ingester-replicate@.service").read_text()
    assert "RestartPreventExitStatus=2\n" in unit
    (started,) = re.findall(r"^ExecStart=\S+/ingester (.*)$", unit, re.M)
    assert started.split() == ["replicate", "postgres", "${DSN}", "${NAMESPACE}", "$OPTIONS"]
    pod = yaml.safe_load((MANIFESTS / "replicator" / "replicator.yaml").read_text())["spec"]
    # Two readers of one replication slot would block each other.
    assert (pod["replicas"], pod["strategy"]) == (1, {"type": "Recreate"})
    (container,) = pod["template"]["spec"]["containers"]
    assert container["args"][:2] == started.split()[:2]
    assert container["args"][-2] == "--endpoint"
