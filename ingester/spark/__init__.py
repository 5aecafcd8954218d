"""Tables of an ingester as Spark DataFrames.

    from ingester.spark import read_table, register

    flights = read_table(spark, "file:///var/lib/ingester/store", "demo", "flights")
    now = read_table(spark, url, "demo", "flights", endpoint="grpc://127.0.0.1:8082")

    register(spark)
    spark.read.format("ingester").load(f"{url}/demo/flights")         # no jar
    spark.readStream.format("ingester").load(f"{url}/demo/flights")   # rows as versions add them

Without an endpoint a DataFrame has exactly the files of one manifest version. With one or several
endpoints it also has the rows that those daemons have acknowledged and not yet flushed, each once.

    ``read``        read_table: version, reader, rows
    ``source``      format("ingester"), as a batch read and as a stream
    ``sink``        format("ingester") as a write: append, or upsert by primary key
    ``compaction``  compact, rewrite, expire; ``compact`` runs the first two as a job
    ``push``        a frame as the next generation of a table, in every region; and as a job
    ``session``     register the format with a session; a local session for demos and tests
    ``options``     options of the data source, checked
    ``versions``    differences between PySpark 4.0 and later
    ``errors``      errors of reads and writes, by who must act

PySpark comes with ``pip install '.[spark]'``. Nothing here imports trio or the daemon:
executors need this distribution and no server. Start reading at ``read``.
"""

from ingester.spark.compaction.api import compact as compact
from ingester.spark.compaction.api import expire as expire
from ingester.spark.compaction.api import rewrite as rewrite
from ingester.spark.errors import PySparkMissing as PySparkMissing
from ingester.spark.errors import ReaderUnsuitable as ReaderUnsuitable
from ingester.spark.errors import RowsMissing as RowsMissing
from ingester.spark.errors import StreamUnsuitable as StreamUnsuitable
from ingester.spark.errors import TailStale as TailStale
from ingester.spark.errors import TailUnavailable as TailUnavailable
from ingester.spark.errors import WriteRefused as WriteRefused
from ingester.spark.read.read_table import read_table as read_table
from ingester.spark.session import register as register
from persist.compaction import CompactionReport as CompactionReport
