"""Measures the ingester beside what bounds it, in one run: ``python -m tests.bench [--full]``.

    rows ──▶ client processes ──▶ the daemon            ┐
                               ──▶ a server that keeps  ├─ same rows, same clients, taken in turns
                               ──▶ a server that drops  │
    rows ──▶ plain append + fdatasync, plain pyarrow    ┘

Law of this package: a number counts only beside another one of the same run. Every cell is measured
several times, the parties one after another within each repeat, and a ratio is the median of the
ratios of repeats, so that a machine that is busy for a while slows both sides of it.

One module per table in :mod:`tables`; a new table is a new module and two lines there.
What they share: :mod:`rows` (the rows), :mod:`clients` and :mod:`streams` (client processes),
:mod:`rivals` (Flight servers that do the least), :mod:`peers` (what users would pick instead),
:mod:`samples` (medians, spreads, ratios) and :mod:`report` (text and JSON).
"""
