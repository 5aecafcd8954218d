"""``python -m tests.alerts``: see :mod:`tests.alerts.campaign`."""

from tests.alerts.campaign import main

if __name__ == "__main__":
    raise SystemExit(main())
