"""Object storage: whole objects under names, written atomically, created at most once.

    URL ─▶ `opening` ─┬▶ `local`     files: temporary file, fsync, rename or link, fsync
                      ├▶ `s3`        one single PUT per write, If-None-Match for a create
                      └▶ `generic`   other fsspec file systems that create conditionally

`contract` states what every store promises, and the errors by who must act. `opening` also probes a
store at start-up and reads the mark that identifies it. `s3` gives each call a deadline,
and `s3_errors` interprets answers. `generic` also turns a remote object into a file that fetches
only what is read. `watched` records the outcome of the requests to any store and decides whether it
is reachable. `folders` lists folders instead of objects, `deleting` deletes many objects.
`option_names` has the name of the options in every interface, and the earlier ones.

All calls block and may come from any thread. No store retries by itself, except a conflict of two
conditional writes; callers retry by the one policy in `retry`. An object is never changed in place.
Safe to import on Spark executors: no trio, and boto only for ``s3://`` URLs. Start reading at
`contract`.
"""

from persist.store.contract import AlreadyExists as AlreadyExists
from persist.store.contract import ObjectInfo as ObjectInfo
from persist.store.contract import ObjectNotFound as ObjectNotFound
from persist.store.contract import ObjectStore as ObjectStore
from persist.store.contract import PutInfo as PutInfo
from persist.store.contract import StoreDenied as StoreDenied
from persist.store.contract import StoreError as StoreError
from persist.store.contract import StoreFull as StoreFull
from persist.store.contract import StoreUnavailable as StoreUnavailable
from persist.store.contract import StoreUnsuitable as StoreUnsuitable
from persist.store.deleting import delete_all as delete_all
from persist.store.folders import folders as folders
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
