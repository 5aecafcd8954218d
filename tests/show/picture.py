"""The show as one picture: latency, memory, files of logs and store over time, and the faults."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from tests.show.load import Timed
from tests.show.watch import Watch

_BINS = 120


def draw(watch: Watch, writes: Timed, queries: Timed, path: Path) -> None:
    """Write a PNG."""
    figure = Figure(figsize=(10.0, 9.0))
    FigureCanvasAgg(figure)
    latency, rows, memory, files, stored = figure.subplots(5, 1, sharex=True)
    for name, timed in (("writes", writes), ("queries", queries)):
        _latencies(latency, name, timed, watch.began)
    latency.set(yscale="log", ylabel="ms")
    times, counts = np.array(watch.rows).T
    rows.plot(times[1:], np.diff(counts) / np.maximum(np.diff(times), 1e-3) / 1e3)
    rows.set(ylabel="1,000 rows/s")
    for name, samples in sorted(watch.memory.items()):
        at, mib = np.array(samples).T
        memory.plot(at, mib, ".", markersize=2, label=f"daemon {name}")
    memory.set(ylabel="MiB", ylim=(0, None))
    at, count = np.array(watch.log_files).T
    files.plot(at, count)
    files.set(ylabel="files in logs", ylim=(0, None))
    at, data, objects = np.array(watch.store_files).T
    stored.plot(at, data, label="data files")
    stored.plot(at, objects, label="all objects")
    stored.set(ylabel="in the store", xlabel="seconds", ylim=(0, None))
    for axes in (latency, rows, memory, files, stored):
        axes.grid(visible=True, alpha=0.3)
        for when, _ in watch.faults:
            axes.axvline(when, color="tab:red", alpha=0.3, linewidth=0.8)
    for when, name in watch.faults[:: max(1, len(watch.faults) // 20)]:
        latency.text(when, latency.get_ylim()[1], name, fontsize=6, rotation=60, va="bottom")
    for axes in (latency, memory, stored):
        axes.legend(fontsize=7, loc="upper right", ncols=4)
    figure.savefig(path, dpi=80, bbox_inches="tight", pil_kwargs={"optimize": True})


def _latencies(axes: Axes, name: str, timed: Timed, began: float) -> None:
    """Return median and 99th percentile of the calls that ended in each time span."""
    at, took = np.array(timed.calls).T
    edges = np.linspace(0, max(at) - began, _BINS + 1)
    place = np.digitize(at - began, edges)
    middles, medians, highs = [], [], []
    for number in range(1, _BINS + 1):
        here = took[place == number] * 1e3
        if here.size:
            middles.append(edges[number - 1])
            medians.append(np.percentile(here, 50))
            highs.append(np.percentile(here, 99))
    (line,) = axes.plot(middles, medians, label=f"{name}, median")
    axes.plot(middles, highs, ":", color=line.get_color(), label=f"{name}, 99th")
