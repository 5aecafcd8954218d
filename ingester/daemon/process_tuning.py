"""Settings of the process that must be made before the first call is served."""

from __future__ import annotations

import os
import resource
import sys

import pyarrow as pa

SLICE_S = 0.001
"""The time after which a computing thread yields the interpreter to a waiting one."""
_EXPERIMENTS = "GRPC_EXPERIMENTS"
_VERBOSITY = "GRPC_VERBOSITY"


def raise_descriptors() -> None:
    """Raise the soft limit of file descriptors to the hard one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def let_calls_poll() -> None:
    """Make gRPC poll its connections in the threads of calls, unless the environment decides.

    gRPC's default reads sockets in threads of its event engine, which wake the thread that waits
    for the message: one thread switch more for each message. With few cores and one interpreter
    that costs small batches a quarter more processor time (docs/performance.md). Call before gRPC
    is used. A gRPC without this experiment ignores it. Source: gRPC's
    ``src/core/lib/experiments/experiments.yaml``.
    """
    os.environ.setdefault(_EXPERIMENTS, "-event_engine_listener")


def keep_grpc_silent() -> None:
    """Keep gRPC from writing to standard error, unless the environment decides.

    The daemon's log is there. gRPC logs the server name of each failed handshake as the client sent
    it; a name with a line break would forge a line of the log. Call before gRPC is used. Source:
    ``gpr_log_verbosity_init`` in gRPC's ``src/core/util/log.cc``; "No match found for server name"
    in its ``ssl_transport_security.cc``.
    """
    os.environ.setdefault(_VERBOSITY, "NONE")


def hand_over_soon() -> None:
    """Make a computing thread yield the interpreter after 1 ms instead of 5.

    A call takes the interpreter several times for each batch; beside a long computation it would
    wait each time.
    """
    sys.setswitchinterval(SLICE_S)


def convert_once() -> None:
    """Convert one Python object to Arrow, so that pyarrow imports pandas now if it is installed.

    pyarrow does this at its first conversion, and it takes a second: the first write or query would
    wait for it.
    """
    pa.array([0])
