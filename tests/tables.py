"""Tables of cases that one test goes through.

To start and to report a test takes a millisecond, or two with an event loop: more than many an assertion over a table.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

__all__ = ["for_each", "noted"]


def for_each(names: str, rows: Iterable[Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Go through rows in one test, where `pytest.mark.parametrize` makes a test of each.

    A failure ends the test, and a note on it shows the values of the row.

    Args:
        names: The parameters that a row has values for, with commas between them.
        rows: The rows: tuples, or values if there is one parameter.
    """
    parameters = [name.strip() for name in names.split(",")]
    table = [dict(zip(parameters, row if len(parameters) > 1 else (row,), strict=True)) for row in rows]
    assert table, "A test without rows would pass."

    def decorate(test: Callable[..., Any]) -> Callable[..., Any]:
        def go_through(**fixtures: Any) -> None:
            for row in table:
                with noted(row):
                    test(**row, **fixtures)

        async def go_through_async(**fixtures: Any) -> None:
            for row in table:
                with noted(row):
                    await test(**row, **fixtures)

        signature = inspect.signature(test)
        left = [each for each in signature.parameters.values() if each.name not in parameters]
        whole: Any = go_through_async if inspect.iscoroutinefunction(test) else go_through
        functools.update_wrapper(whole, test)
        whole.__signature__ = signature.replace(parameters=left)
        return whole

    return decorate


@contextmanager
def noted(row: dict[str, Any]) -> Iterator[None]:
    """Note on a failure which row of a table it was in."""
    try:
        yield
    except pytest.skip.Exception:
        pytest.fail("A row that is skipped would skip the rows after it, too.")
    except BaseException as error:
        error.add_note("In the row " + ", ".join(f"{name} = {value!r}" for name, value in row.items()))
        raise
