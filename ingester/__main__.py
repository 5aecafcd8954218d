"""``python -m ingester`` is the command ``ingester``."""

from ingester.cli import main

if __name__ == "__main__":
    main()
