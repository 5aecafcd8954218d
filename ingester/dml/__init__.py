"""Operations: batches of one table, as the log and the buffers take them.

    batch split by partition ─▶ ``operation`` ─▶ ``record`` ─▶ the log's bytes, and back
                                                   └ ``control_records``: transactions, origins

``ipc`` makes the rows' Arrow message without copying them; ``content`` digests them, so that a
repeat with other rows is recognised. An operation names its table by key and knows no buffer.
Everything is pure. Start reading at ``operation``.
"""
