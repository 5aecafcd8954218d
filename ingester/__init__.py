"""A durable streaming ingester: Arrow batches in over Flight, sorted Parquet out to a store.

Five ways lead through it; each room's own page tells the rest. A room is one of the packages below.

    write     ``server/flight`` ─▶ ``write`` (─▶ ``tables``, at a first write or sequence)
              ─▶ (`wal`) ─▶ ``buffer``
              A gRPC thread receives a batch. It is checked, split by partition and encoded, and
              let in by its bytes: a small batch, and one that is passed on, before that, any other
              after it. Small batches of one schema that wait together become one record, each with
              its own sequence. One thread writes and syncs what waits, up to some MiB, as a group:
              the log's own, or that of a caller who finds nobody writing. The outcome of a batch
              without an origin is known then. The event loop applies the group to the buffers in
              log order, and then knows the outcomes of those with an origin. The stream's own
              thread sends them as answers.

    flush     ``buffer`` ─▶ ``flush`` ─▶ (`persist`) ─▶ ``tables`` ─▶ ``buffer``
              A partition's buffer is frozen when it is old or large, or when memory is short.
              Workers sort and encode its rows, in a keyed table merged into the files they belong
              to, and put files into the store; a commit to the table's manifest makes them visible.
              One step on the loop installs the new version and lets the buffer go; then the log's
              segments go that nobody needs any more.

    query     ``server/flight`` ─▶ ``query`` ─▶ ``buffer``, (`persist`)
              What is acknowledged is applied first. A snapshot fixes a manifest version and a place
              in every buffer. The client pulls the rows part by part, wherever they lie by then.
              A follower's call waits until there is something behind the position that it names.

    copy      ``server/flight`` ─▶ ``copies`` ─▶ (`persist`) ─▶ ``tables``
              Rows of a whole table go straight into files of a table version that nobody sees. One
              commit has all of them, and the table is that version from then on.

    restart   ``daemon`` ─▶ (`wal`), (`persist`) ─▶ ``recovery`` ─▶ ``tables``, ``buffer``
              A start checks the log and claims a new epoch in the store. Replay commits that epoch
              to every table the log names, and the first write does so to any other: from then on
              whoever ran under this name before can commit nothing to that table. Replay brings
              back what no file has. ``ingester wal adopt``, a process of its own, brings the log of
              a daemon that will not come back into the tables, under the old identity: it makes
              files by ``flush`` and commits them by `persist` itself.

The rooms, from the top: ``cli`` and ``demo`` are for people; ``daemon`` puts one process together
and runs it; ``server`` speaks the protocols; ``replication`` and ``recovery`` stand on the kinds
of work, ``write``, ``query``, ``flush``, ``maintenance`` and ``copies``, blind to each other;
``tables`` is the catalogue and the one gate to each table's manifest; ``buffer`` holds the recent
rows; ``dml`` is what an operation is; ``origins`` knows who has written what, ``schema`` what a
table takes, ``observability`` what is told, ``quotas`` what a namespace may have; ``config``,
``memory`` and ``errors`` are for all; ``reports`` is what replicators and push controllers tell the
daemon about their work. ``transform`` is what a user's class is that changes batches
on their way in; ``shown_text`` says how the text of others is shown, and ``secret_texts`` what is
never shown.
Beside the daemon: ``client``, and on it ``followers`` (copies of tables), ``spark`` and
``postgres``; and ``pushes``, which replaces a table atomically, region by region (``lifecycle`` is
its former name). `wal` and `persist` are
packages of their own and know nothing of the daemon. ``__main__`` is ``python -m ingester``. A
room imports only from lower ones.

A file's first lines say what it is for; its law, where it has one, is the invariant that whoever
changes it keeps. Start reading at :mod:`ingester.write`.
"""

__version__ = "0.1.0"
