"""Tables of cases that one test goes through.

To start and to report a test takes a millisecond, or two with an event loop: more than many an assertion over a table.
"""

from __future__ import annotations

import functools
import inspect
import reprlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

__all__ = ["for_each", "noted"]

short_repr = reprlib.Repr()  # it shows values whose `repr` fails, and cuts long ones
short_repr.maxstring = short_repr.maxother = 200


def for_each(
    names: str | Sequence[str], rows: Iterable[Any], *, ids: Callable[[Any], object] | Iterable[object] = ()
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Go through rows in one test, where `pytest.mark.parametrize` makes a test of each.

    A failure ends the test, and a note on it shows the values of the row. `caplog` is empty when a row begins.

    Args:
        names: The parameters that a row has values for, with commas between them.
        rows: The rows: tuples, or values if there is one parameter.
        ids: What the note calls the rows, or their values; needed where these have no telling `repr`.
    """
    parameters = [name.strip() for name in (names.split(",") if isinstance(names, str) else names)]
    table = [dict(zip(parameters, row if len(parameters) > 1 else (row,), strict=True)) for row in rows]
    assert table, "A test without rows would pass."
    if callable(ids):
        texts = ["-".join(str(ids(value)) for value in row.values()) for row in table]
    else:
        texts = [str(each) for each in ids] or [""] * len(table)
    named = list(zip(texts, table, strict=True))

    def decorate(test: Callable[..., Any]) -> Callable[..., Any]:
        def go_through(**fixtures: Any) -> None:
            for name, row in named:
                with noted(row, name, fixtures.get("caplog")):
                    test(**row, **fixtures)

        async def go_through_async(**fixtures: Any) -> None:
            for name, row in named:
                with noted(row, name, fixtures.get("caplog")):
                    await test(**row, **fixtures)

        signature = inspect.signature(test)
        left = [each for each in signature.parameters.values() if each.name not in parameters]
        whole: Any = go_through_async if inspect.iscoroutinefunction(test) else go_through
        functools.update_wrapper(whole, test)
        whole.__signature__ = signature.replace(parameters=left)
        return whole

    return decorate


@contextmanager
def noted(row: dict[str, Any], name: str = "", caplog: pytest.LogCaptureFixture | None = None) -> Iterator[None]:
    """Note on a failure which row of a table it was in.

    Args:
        row: The values of the row, by parameter.
        name: What the note calls the row.
        caplog: What is emptied before the row.
    """
    if caplog is not None:
        caplog.clear()
    try:
        yield
    except pytest.skip.Exception:
        pytest.fail("A row that is skipped would skip the rows after it, too.")
    except BaseException as error:
        values = ", ".join(f"{key} = {short_repr.repr(value)}" for key, value in row.items())
        error.add_note(f"In the row {name!r}, {values}" if name else f"In the row {values}")
        raise
