"""Regions of pushes: a store, the daemons that serve from it, and what a push does with both.

    ``region`` ─┬─▶ ``tables``        a table before the push
                ├─▶ ``generation``    its generation of the push: created, live, and back
                ├─▶ ``data``          files are checked, committed, copied
                └─▶ ``store``         the store, the daemons, and their errors

``region`` is the :class:`ingester.pushes.tasks.Region` that drivers use. ``shapes`` decides whether
rows and tables fit each other, and describes files for any region.

Each call is idempotent, and manifests alone tell what was done. Nothing here decides when a step is
due, and the state machine does not import it. Start reading at ``region``.
"""
