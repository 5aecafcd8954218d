"""A region as it is: a store, the daemons that serve from it, and what a push does to both.

    ``region`` ─┬─▶ ``pushed_table`` ─▶ ``pushed_version``     there is a table, and a version of it
                ├─▶ ``data`` ─▶ ``data_copy``, ``data_check``  its files are there, and listed
                ├─▶ ``switch``                                 it goes live, and back
                └─▶ ``daemons``                                rows that come meanwhile; followers

``region`` is the :class:`ingester.pushes.regions.Region` that drivers ask; ``store`` is its
store, and what that one's errors mean for a push. ``shapes`` decides whether rows and tables go
together, ``plans`` what a push brings to the tables of all regions. ``pushed_table`` makes the
table fit, ``pushed_version`` the version of it that a push fills. ``pushed_files`` are listed by
``data``, once ``data_check`` has found them whole; from region to region they go by ``data_copy``.
``switch`` takes the version live, and back.

Whatever is asked for twice is done once, and what is there is told by the manifests alone. Nothing
here decides when a step is due, and nothing of the machine imports it. Start reading at ``region``.
"""
