"""The options of a store are named ``store_options`` everywhere; earlier names stay accepted.

    store_options=…           storage_options=…     parameters of functions, keys of a pushes file
    store_options.<name>      storage.<name>        options of Spark's data source
    --store-option            --storage-option      command line

Both names in one call are refused, as one of them would be ignored
(``tests/persist/store/test_option_names.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

NAME, EARLIER_NAME = "store_options", "storage_options"
PREFIX, EARLIER_PREFIX = "store_options.", "storage."
FLAG, EARLIER_FLAG = "--store-option", "--storage-option"


def refuse_both(name: str, earlier: str, given: object, given_earlier: object) -> None:
    """Raise ValueError if an option is given under its name and under its earlier one."""
    if given is not None and given_earlier is not None:
        raise ValueError(f"{earlier} is the earlier name of {name}: give {name} only")


def accepts_earlier_name(function: Callable[P, T]) -> Callable[P, T]:
    """The function with ``storage_options`` accepted for its parameter ``store_options``."""

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        if EARLIER_NAME in kwargs:
            earlier = kwargs.pop(EARLIER_NAME)
            refuse_both(NAME, EARLIER_NAME, kwargs.get(NAME), earlier)
            kwargs.setdefault(NAME, earlier)
        return function(*args, **kwargs)

    return called
