"""Pushes: a table is replaced atomically, region by region, as hooks decide.

A push writes a new *generation* of a table into every region, beside the current one, and then
switches one region after another. A region is a store and the daemons that serve from it.

    ``driver`` ─▶ ``rollout`` (what is due?) ─▶ a hook, or a region
        ▲                                             │ answer
        └── ``store`` (saved) ◀── ``rollout``, ``outcomes`` (what does it mean?) ◀┘

**For users.** ``hooks`` has the base class of hooks, their contexts and answers; ``shipped`` are
the hooks that come with the product. ``spark`` writes a push from a frame; users import it as
`ingester.spark.push`.

**The state machine** is pure. ``states`` has the statuses with their transitions, the stages and
the order of regions; ``record`` is all that is saved of a push, with the rounds of calls of a step;
``tasks`` is what a push asks of hooks and regions, with the interface of a region.

**What acts.** ``config`` reads the configuration file. ``hook_loading`` loads the configured hooks,
``hook_calls`` runs user code in threads and counts its calls, ``hook_runner`` calls hooks for a
push. ``store`` keeps the records so that two controllers cannot both act. ``regions`` are
stores with their daemons.

**Leaders.** ``leading`` takes over a push, sends heartbeats and publishes the status for the
daemons to show; ``controller`` does so for all pushes without a leader, ``cleaning`` deletes old
pushes and leftovers. ``configured`` is what commands and controller start from.

A controller may be killed between any two steps; another one continues from the saved record. Hooks
are called at least once, and regions asked at least once. This room is not part of a daemon, and no
daemon imports it. Start reading at ``rollout``.
"""

from ingester.pushes.hooks import ABORT as ABORT
from ingester.pushes.hooks import PROCEED as PROCEED
from ingester.pushes.hooks import ROLLBACK as ROLLBACK
from ingester.pushes.hooks import WAIT as WAIT
from ingester.pushes.hooks import Answer as Answer
from ingester.pushes.hooks import Comparison as Comparison
from ingester.pushes.hooks import ConfigContext as ConfigContext
from ingester.pushes.hooks import Decision as Decision
from ingester.pushes.hooks import HookContext as HookContext
from ingester.pushes.hooks import LifecycleHooks as LifecycleHooks
from ingester.pushes.hooks import PushView as PushView
from ingester.pushes.hooks import RegionView as RegionView
from ingester.pushes.hooks import VersionStatistics as VersionStatistics
from ingester.pushes.hooks import abort as abort
from ingester.pushes.hooks import rollback as rollback
from ingester.pushes.hooks import wait as wait
from ingester.pushes.states import Status as Status
