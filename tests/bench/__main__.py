"""``python -m tests.bench``; see :mod:`tests.bench.command`.

Law of this file: nothing is imported where it is imported itself. Each child process does that anew
(:mod:`multiprocessing`, "spawn"), and would load every table and what draws pictures: a second of
processor time for each of some eighty.
"""

if __name__ == "__main__":
    import sys

    from tests.bench.command import main

    sys.exit(main())
