"""Measures the ingester next to its upper bounds, in one run: ``python -m tests.bench [--full]``.

    rows ──▶ client processes ──▶ the daemon            ┐
                               ──▶ a server that keeps  ├─ same rows, same clients, taken in turns
                               ──▶ a server that drops  │
    rows ──▶ plain append + fdatasync, plain pyarrow    ┘

A number is only meaningful next to another one of the same run. Every cell is measured several
times, the parties one after another within each repeat, and a ratio is the median of the ratios
of repeats, so that a temporarily busy machine slows both sides.

One module per table in :mod:`tables`; a new table is a new module and two lines there. Shared
modules: :mod:`rows` (the rows), :mod:`clients` and :mod:`streams` (client processes),
:mod:`rivals` (minimal Flight servers), :mod:`peers` (systems that users would pick instead),
:mod:`samples` (medians, spreads, ratios) and :mod:`report` (text and JSON).
"""
