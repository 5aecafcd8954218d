"""What an operation is, in memory and in the log.

    batch split by partition ─▶ ``part`` ─▶ ``operation`` ─▶ ``record`` ─▶ the log's bytes, and back
                                              ├ ``transaction_record``: several tables at once
                                              ├ ``shared_record``: bytes that checkpoints share
                                              └ ``origin_record``: what a segment carries of origins
    ``ipc``: the rows' own message, without a copy         ``sink``: who takes operations

An operation names its table by key and knows no buffer. Everything but ``sink`` is pure. Start
reading at ``operation``.
"""
