"""``python -m tests.bench``; see :mod:`tests.bench.command`.

Imports are deferred to the main program. :mod:`multiprocessing` with "spawn" imports this module
in each of some eighty child processes, which would otherwise load every table and the plotting
libraries: a second of processor time each.
"""

if __name__ == "__main__":
    import sys

    from tests.bench.command import main

    sys.exit(main())
