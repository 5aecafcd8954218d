"""Object storage: whole objects under names, written atomically, created at most once.

    URL ─▶ ``opening`` ─┬▶ ``local``     files: temporary file, fsync, rename or link, fsync again
                        ├▶ ``s3``        one single PUT per write, If-None-Match for a create
                        └▶ ``generic``   other fsspec file systems that create conditionally

``contract`` says what every store promises, ``errors`` what it answers, by who has to act.
``probe`` asks a store at start-up whether it can do what the manifest needs; ``mark`` tells it from
every other. S3 has ``s3_client``
below it, where each call has a deadline, and ``s3_errors``, which says what an answer means;
``ranges`` makes a remote object a file that fetches what is read. ``watched`` notes what the
requests of any store come to, and ``standing`` says by that whether it answers.

All calls block and may come from any thread. No store retries by itself, apart from a conflict of
two conditional writes: callers decide what waiting costs, and wait by the one policy in ``retry``.
An object is never changed in place. Safe to import on Spark executors: no trio, and boto only where
an ``s3://`` URL is opened. Start reading at ``contract``.
"""

from persist.store.contract import AlreadyExists as AlreadyExists
from persist.store.contract import NotFound as NotFound
from persist.store.contract import ObjectInfo as ObjectInfo
from persist.store.contract import ObjectStore as ObjectStore
from persist.store.contract import PutInfo as PutInfo
from persist.store.contract import StoreDenied as StoreDenied
from persist.store.contract import StoreError as StoreError
from persist.store.contract import StoreFull as StoreFull
from persist.store.contract import StoreUnavailable as StoreUnavailable
from persist.store.contract import StoreUnsuitable as StoreUnsuitable
from persist.store.opening import StoreMark as StoreMark
from persist.store.opening import check_store as check_store
from persist.store.opening import ensure_mark as ensure_mark
from persist.store.opening import open_store as open_store
from persist.store.opening import read_mark as read_mark
from persist.store.retry import StoreRetry as StoreRetry
from persist.store.retry import Tell as Tell
from persist.store.retry import retry as retry
from persist.store.retry import retry_async as retry_async
from persist.store.watched import StoreWatch as StoreWatch
from persist.store.watched import WatchedStore as WatchedStore
