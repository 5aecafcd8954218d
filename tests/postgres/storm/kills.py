"""The processes that a storm kills and restarts."""

from __future__ import annotations

import random
import shutil
import time
from collections import Counter
from collections.abc import Callable

from tests.drivers.daemon import Daemon
from tests.postgres.cluster import Cluster
from tests.postgres.replicating import Replicating


class Killer:
    """Kills processes as the seed draws; ``daemon`` is the running daemon."""

    def __init__(
        self, cluster: Cluster, daemon: Daemon, replicator: Replicating, seed: int
    ) -> None:
        self.daemon = daemon
        self.kills: Counter[str] = Counter()
        self._cluster = cluster
        self._replicator = replicator
        self._rng = random.Random(f"kills {seed}")
        self._ways: dict[str, tuple[Callable[[], None], int]] = {
            "replicator": (self._kill_replicator, 6),
            "replicator, by SIGTERM": (self._stop_replicator, 1),
            "daemon": (self._kill_daemon, 4),
            "daemon and replicator": (self._kill_both, 2),
            "daemon and its disk": (self._lose_disk, 1),
            "walsender": (self._end_walsender, 5),
            "server": (self._cluster.restart, 1),
        }

    def kill(self) -> str:
        """Kill and restart one of the processes, and return its name."""
        weights = [weight for _, weight in self._ways.values()]
        [who] = self._rng.choices(list(self._ways), weights)
        self._ways[who][0]()
        self.kills[who] += 1
        return who

    def _kill_replicator(self) -> None:
        self._replicator.kill()
        time.sleep(self._rng.choice([0.0, 0.0, 1.0]))
        self._replicator.start()

    def _stop_replicator(self) -> None:
        self._replicator.stop()
        self._replicator.start()

    def _kill_daemon(self) -> None:
        self.daemon.kill()
        self.daemon = self.daemon.again()

    def _lose_disk(self) -> None:
        self.daemon.kill()
        shutil.rmtree(self.daemon.data_dir)
        self.daemon = self.daemon.again(recovery__accept_lost_log="true")

    def _kill_both(self) -> None:
        self._replicator.kill()
        self._kill_daemon()
        self._replicator.start()

    def _end_walsender(self) -> None:
        self._cluster.run("SELECT pg_terminate_backend(pid) FROM pg_stat_replication")
