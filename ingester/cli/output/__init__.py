"""Query answers written as tables, CSV, JSON lines, Arrow IPC or Parquet.

    ``formats``   a sink for each format, and the endless table of ``tail``

Values have the texts of ``ingester.value_texts``. ``write`` reads every value back as it was, and a
file appears complete or not at all. This room never contacts a daemon: ``query`` and ``tail`` hand
batches over. Start reading at ``formats``.
"""
