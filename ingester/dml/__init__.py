"""Operations: a batch of one table on its way into the log and the buffers.

    batch split by partition ─▶ ``operation`` ─▶ ``record`` ─▶ the log's bytes, and back
                                                   └ ``control_records``: transactions, origins

``ipc`` makes the rows' Arrow message without copying them. An operation names its table by key and
knows no buffer. Everything is pure. Start reading at
``operation``.
"""
