"""``serve``, ``config`` and ``demo``: commands that run a daemon or print its settings."""

import gc
import importlib
import json
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, TextIO

import typer

from ingester.config.exposure import check_exposure
from ingester.config.sources import load, shown_values
from ingester.memory.heap_settings import choose_allocator

from .exits import end_process
from .printing import print_json, print_line, print_table


def serve(flags: Mapping[str, object], file: Path | None) -> None:
    """Run the daemon, then end the process with its exit code.

    Raises:
        ConfigError: Invalid settings.
    """
    settings = load(flags, file=file).settings
    check_exposure(settings)
    choose_allocator()
    # Imported modules stay; garbage collection during import only slows the start.
    gc.disable()
    from ingester.daemon.process import serve as run

    gc.enable()
    # Standard output has one line only: transformers that print would fill an unread pipe.
    output = sys.stdout
    with redirect_stdout(sys.stderr):
        code = run(
            settings,
            lambda facts: announce(facts, output),
            lambda: load(flags, file=file).settings,
        )
    end_process(code)


def announce(facts: Mapping[str, Any], output: TextIO) -> None:
    """Print the one line that reports that writes are accepted."""
    print_line(json.dumps({"event": "ready"} | dict(facts)), output)


def print_settings(flags: Mapping[str, object], file: Path | None, as_json: bool) -> None:
    """Print every setting with its value and source. Secrets are masked."""
    loaded = load(flags, file=file)
    values = shown_values(loaded.settings)
    if as_json:
        print_json(
            {key: {"value": value, "source": loaded.origins[key]} for key, value in values.items()}
        )
        return
    texts = {k: v if isinstance(v, str) else json.dumps(v) for k, v in values.items()}
    rows = [(key, text, loaded.origins[key]) for key, text in texts.items()]
    print_table(["setting", "value", "from"], rows)


def demo(**options: object) -> None:
    # By name, so that the command line is not type-checked against pyspark.
    run_demo = importlib.import_module("ingester.demo").run_demo
    raise typer.Exit(int(run_demo(**options)))
