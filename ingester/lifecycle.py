"""The name that :mod:`ingester.pushes` had before, for hooks that were written against it."""

from ingester.pushes import ABORT as ABORT
from ingester.pushes import PROCEED as PROCEED
from ingester.pushes import ROLLBACK as ROLLBACK
from ingester.pushes import WAIT as WAIT
from ingester.pushes import Answer as Answer
from ingester.pushes import Comparison as Comparison
from ingester.pushes import ConfigContext as ConfigContext
from ingester.pushes import Decision as Decision
from ingester.pushes import HookContext as HookContext
from ingester.pushes import LifecycleHooks as LifecycleHooks
from ingester.pushes import PushView as PushView
from ingester.pushes import RegionView as RegionView
from ingester.pushes import Status as Status
from ingester.pushes import VersionStatistics as VersionStatistics
from ingester.pushes import abort as abort
from ingester.pushes import rollback as rollback
from ingester.pushes import wait as wait
