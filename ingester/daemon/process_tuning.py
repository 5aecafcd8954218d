"""Settings of the process itself that must stand before the first call is served."""

from __future__ import annotations

import os
import resource
import sys

SLICE_S = 0.001
"""The seconds after which a thread that computes hands the interpreter over to one that waits."""
_EXPERIMENTS = "GRPC_EXPERIMENTS"
_VERBOSITY = "GRPC_VERBOSITY"


def raise_descriptors() -> None:
    """Raise the soft limit of file descriptors to the hard one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def let_calls_poll() -> None:
    """Have gRPC serve connections in the older way, unless the environment says how.

    gRPC's newer way reads sockets in threads of its own, the event engine's, which then wake the
    thread that waits for the message. In a daemon whose threads share few processors and one
    interpreter that is one change of thread more for each message: single rows of eight clients
    that wait cost 0.23 ms of processor time instead of 0.18, and batches of 1,000 rows are a
    seventh slower.

    To be called before anything of gRPC is used. A gRPC that knows no other way any more goes on in
    its own; where it may write, it says so once.
    Source: gRPC's ``src/core/lib/experiments/experiments.yaml``.
    """
    os.environ.setdefault(_EXPERIMENTS, "-event_engine_listener")


def keep_grpc_silent() -> None:
    """Have gRPC write nothing to standard error, unless the environment says how much.

    The daemon's log is there. gRPC writes lines of its own form beside it, one for each handshake
    that fails, with the name that a stranger has asked for as it came: a name with an end of line
    in it was a line of the log, with whatever its sender liked.

    To be called before anything of gRPC is used.
    Source: ``gpr_log_verbosity_init`` in gRPC's ``src/core/util/log.cc``; "No match found for
    server name" in its ``ssl_transport_security.cc``.
    """
    os.environ.setdefault(_VERBOSITY, "NONE")


def hand_over_soon() -> None:
    """Have a thread that computes give the interpreter to one that waits after 1 ms, not after 5.

    A call of one client lets go of the interpreter for each batch, and takes it several times on
    its way; beside a call that computes for long, it waited for it each time. Slices of 1 ms cost
    writers nothing that can be measured.
    """
    sys.setswitchinterval(SLICE_S)
