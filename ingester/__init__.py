"""A durable streaming ingester: Arrow batches in over Flight, sorted Parquet out to a store.

Four ways lead through it; each room's own page tells the rest.

    write     server/flight ─▶ write ─▶ (wal) ─▶ buffer
              A gRPC thread checks a batch, splits it by partition and encodes it. The log writes
              and syncs whatever waits as one group; then the event loop applies the group to the
              buffers, in log order, and every writer is answered.

    flush     buffer ─▶ flush ─▶ (persist) ─▶ tables ─▶ buffer
              A partition's buffer is frozen. Workers sort and encode its rows and put the file into
              the store; a commit to the table's manifest makes it visible. In one step on the loop
              the new version is installed and the buffer let go; then segments of the log that
              nobody needs go.

    query     server/flight ─▶ query ─▶ buffer, (persist)
              A snapshot fixes a manifest version and a place in every buffer. The client pulls the
              rows part by part, wherever they lie by then.

    restart   daemon ─▶ recovery ─▶ (wal) ─▶ buffer
              A start claims a new epoch, puts it into the manifest of every table that the log
              names, and replays what no file has. What a dead daemon's log still holds is adopted.

The rooms, from the top: ``cli`` and ``demo`` are for people; ``daemon`` puts one process together
and runs it; ``server`` speaks the protocols; ``replication`` and ``recovery`` stand on the four
kinds of work, ``write``, ``query``, ``flush`` and ``maintenance``, which are blind to each other;
``tables`` is the catalogue and the one gate to each table's manifest; ``buffer`` holds the recent
rows; ``dml`` is what an operation is; ``origins`` knows who has written what, ``schema`` what a
table takes, ``observability`` what is told; ``config``, ``memory`` and ``errors`` are for all.
Beside the daemon: ``client``, and on it ``spark`` and ``postgres``. `wal` and `persist` are
packages of their own and know nothing of the daemon. ``__main__`` is ``python -m ingester``.

Start reading at :mod:`ingester.write`.
"""

__version__ = "0.1.0"
