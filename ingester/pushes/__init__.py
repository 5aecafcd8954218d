"""How a new version of a table goes live: step by step, region by region, as hooks decide.

    ``driver`` ─▶ ``rollout`` (what is due?) ─▶ a hook, or a region
        ▲                                             │ answer
        └── ``push_store`` (kept) ◀── ``rollout``, ``outcomes`` (what does it mean?) ◀┘

**What users write.** ``hooks`` is the class to build on, ``answers`` are what its methods return,
``contexts`` what they are told, ``methods`` which of them may say what.

**The machine**, all of it pure. ``status`` has the two tables of transitions, ``stages`` the way of
a push and of each region, ``orders`` who goes before whom. ``record`` is all that is kept of it, as
``kept_json``. ``asking`` are the rounds of questions of one step, ``tasks`` what can be due,
``ending`` how a push is given up or undone.

**Configuration.** ``push_config`` reads the file that names the regions, ``settings`` are those of
hooks, ``loading`` finds the classes and has them check their configuration. ``runner`` calls them
in threads with a time limit, ``counts`` what came of it, and ``hook_metrics`` tells that as
metrics.

**Hooks that are there** are in ``shipped``; ``version_statistics`` is what a manifest says of a
version's data.

**What acts.** ``regions`` is what a region has to be able to do, ``push_store`` where records are
kept so that two controllers cannot both act, ``driver`` does what is due in threads.
``push_status`` makes the status of a push (`ingester.reports`), and ``status_publisher`` publishes
it in every region.

**With Spark** data is written by ``spark``.

**Regions that are real** have a room of their own, ``store_region``: stores, and daemons.

**Who leads.** ``leading`` is heard of as a push's leader, and takes over what nobody leads;
``push_folders`` tells from one listing who that is. ``controller`` does so for all pushes of a
store; ``push_log`` and ``push_metrics`` say what it does, ``leftovers`` are given up by regions
that were away, and ``pruning`` deletes what ended long ago.

A controller may be killed between any two steps, and another one goes on from what was kept: hooks
are called at least once, and regions asked at least once. This room writes no rows and is no part
of a daemon; it runs where a push runs. Start reading at ``rollout``.
"""

from ingester.pushes.answers import ABORT as ABORT
from ingester.pushes.answers import PROCEED as PROCEED
from ingester.pushes.answers import ROLLBACK as ROLLBACK
from ingester.pushes.answers import WAIT as WAIT
from ingester.pushes.answers import Answer as Answer
from ingester.pushes.answers import Decision as Decision
from ingester.pushes.answers import abort as abort
from ingester.pushes.answers import rollback as rollback
from ingester.pushes.answers import wait as wait
from ingester.pushes.contexts import Comparison as Comparison
from ingester.pushes.contexts import ConfigContext as ConfigContext
from ingester.pushes.contexts import HookContext as HookContext
from ingester.pushes.contexts import PushView as PushView
from ingester.pushes.contexts import RegionView as RegionView
from ingester.pushes.contexts import VersionStatistics as VersionStatistics
from ingester.pushes.hooks import LifecycleHooks as LifecycleHooks
from ingester.pushes.status import Status as Status
