"""Tables of an ingester as Spark DataFrames.

    from ingester.spark import read_table

    flights = read_table(spark, "file:///var/lib/ingester/store", "demo", "flights")
    now = read_table(spark, url, "demo", "flights", endpoint="grpc://127.0.0.1:8082")

    register(spark)
    spark.read.format("ingester").load(f"{url}/demo/flights")         # no jar
    spark.readStream.format("ingester").load(f"{url}/demo/flights")   # rows as versions add them

Without an endpoint: exactly the files of one manifest version, read by Spark itself. With one (or
several): also the rows that the daemons have acknowledged and not yet persisted, each row once.

    ``read``        read_table: which version, which reader, which rows
    ``source``      format("ingester"), read at once or as a stream
    ``sink``        format("ingester"), written: appended, or by primary key
    ``compaction``  compact, rewrite, expire; ``compact`` is the first two as a job
    ``push``        a frame as the next version of a table, in every region; and as a job
    ``register``    a session learns the format; ``options``: what it is told
    ``versions``    what PySparks from 4.0 on differ in
    ``session``     a local session for a demo; ``errors``: what can keep a table from being read

PySpark comes with ``pip install 'ingester[spark]'``. Nothing here imports trio or the daemon, so
executors need this distribution and not its servers. Start reading at ``read``.
"""

from ingester.spark.compaction.api import compact as compact
from ingester.spark.compaction.api import expire as expire
from ingester.spark.compaction.api import rewrite as rewrite
from ingester.spark.compaction.report import CompactionReport as CompactionReport
from ingester.spark.errors import PySparkMissing as PySparkMissing
from ingester.spark.errors import ReaderUnsuitable as ReaderUnsuitable
from ingester.spark.errors import RowsMissing as RowsMissing
from ingester.spark.errors import StreamUnsuitable as StreamUnsuitable
from ingester.spark.errors import TailStale as TailStale
from ingester.spark.errors import TailUnavailable as TailUnavailable
from ingester.spark.errors import WriteRefused as WriteRefused
from ingester.spark.read.read_table import read_table as read_table
from ingester.spark.register import register as register
