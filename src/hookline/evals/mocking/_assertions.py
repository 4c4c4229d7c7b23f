"""Assertions about tool calls. When they fail, they list all calls that were made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import TypeVar

from hookline._checks import tool_test
from hookline.errors import HookUsageError
from hookline.evals._equality import json_equal
from hookline.evals.matching import SeenCall, argument_differences, format_value, path_of

__all__ = [
    "assert_called",
    "assert_called_before",
    "assert_called_once_with",
    "assert_no_unmocked",
    "assert_not_called",
    "calls_of",
    "table",
]

C = TypeVar("C", bound=SeenCall)
Note = Callable[[C], str]

ROWS = 50
"""How many calls a table shows."""
ARGUMENTS = 80
"""How many characters of a call's arguments a table shows."""


def calls_of(calls: Sequence[C], pattern: str, args: object = None) -> list[C]:
    """Select the calls that a pattern matches, in their order.

    Args:
        calls: Calls that were made.
        pattern: `toolset/tool_name`, a bare name (of any toolset), or a glob over the path.
        args: All arguments that they must have, or any object that can be compared with a dict.
            `None` for any arguments.
    """
    if not isinstance(pattern, str) or not pattern:
        raise HookUsageError(f"A tool is named with a non-empty text, as 'bank/get_iban'; got {pattern!r}.")
    fits = tool_test(pattern)
    # The expected value stands on the left, so that its own `__eq__` is asked first.
    return [call for call in calls if fits(path_of(call)) and (args is None or json_equal(args, call.args))]


def assert_called(
    calls: Sequence[C], pattern: str, args: object = None, times: int | None = None, *, note: Note[C] | None = None
) -> None:
    """Fail unless a tool was called.

    Args:
        calls: Calls that were made.
        pattern: `toolset/tool_name`, a bare name (of any toolset), or a glob over the path.
        args: The arguments that count, all of them; `None` for any.
        times: How often exactly; `None` for at least once.
        note: Returns what the table says of a call, besides its tool and arguments.

    Raises:
        AssertionError: If the assertion fails. The message lists all calls.
        HookUsageError: If an argument is invalid.
    """
    __tracebackhide__ = True
    if times is not None and (not isinstance(times, int) or isinstance(times, bool) or times < 0):
        raise HookUsageError(f"`times` is a whole number from 0, or None for at least once; got {times!r}.")
    found = calls_of(calls, pattern, args)
    if len(found) == times or (times is None and found):
        return
    what = pattern if args is None else f"{pattern} with {format_value(args)}"
    if found:
        raise AssertionError(
            _message(f"{what} was called {_times(len(found))}, not {_times(times or 0)}.", calls, note)
        )
    wanted = "" if times is None else f", not {_times(times)}"
    raise AssertionError(_message(f"{what} was not called{wanted}.{_near(calls, pattern, args)}", calls, note))


def assert_not_called(calls: Sequence[C], pattern: str, *, note: Note[C] | None = None) -> None:
    """Fail if a tool was called.

    Args:
        calls: Calls that were made.
        pattern: `toolset/tool_name`, a bare name (of any toolset), or a glob over the path.
        note: Returns what the table says of a call, besides its tool and arguments.

    Raises:
        AssertionError: If the assertion fails. The message lists all calls.
    """
    __tracebackhide__ = True
    found = calls_of(calls, pattern)
    if found:
        raise AssertionError(_message(f"{pattern} was called {_times(len(found))}, not never.", calls, note))


def assert_called_once_with(calls: Sequence[C], pattern: str, args: object, *, note: Note[C] | None = None) -> None:
    """Fail unless a tool was called exactly once, and with these arguments.

    Args:
        calls: Calls that were made.
        pattern: `toolset/tool_name`, a bare name (of any toolset), or a glob over the path.
        args: All arguments, or any object that can be compared with a dict.
        note: Returns what the table says of a call, besides its tool and arguments.

    Raises:
        AssertionError: If the assertion fails. The message lists all calls.
    """
    __tracebackhide__ = True
    found = calls_of(calls, pattern)
    if len(found) == 1 and args == found[0].args:
        return
    if len(found) > 1:
        raise AssertionError(_message(f"{pattern} was called {_times(len(found))}, not once.", calls, note))
    reason = f"{pattern} was not called with {format_value(args)}."
    raise AssertionError(_message(f"{reason}{_near(calls, pattern, args)}", calls, note))


def assert_called_before(calls: Sequence[C], first: str, second: str, *, note: Note[C] | None = None) -> None:
    """Fail unless two tools were called, and the first call of the one came before the first call of the other.

    Args:
        calls: Calls that were made, in the order in which they began.
        first: Pattern of the tool that comes first.
        second: Pattern of the tool that comes later.
        note: Returns what the table says of a call, besides its tool and arguments.

    Raises:
        AssertionError: If the assertion fails. The message lists all calls.
    """
    __tracebackhide__ = True
    earlier, later = calls_of(calls, first), calls_of(calls, second)
    for pattern, found in ((first, earlier), (second, later)):
        if not found:
            raise AssertionError(_message(f"{pattern} was not called.{_near(calls, pattern, None)}", calls, note))
    one, other = _position(calls, earlier[0]), _position(calls, later[0])
    if one < other:
        return
    if one == other:
        raise AssertionError(_message(f"{first} and {second} are first called by the same call.", calls, note))
    raise AssertionError(
        _message(f"{first} was first called after {second}: call {one + 1}, after call {other + 1}.", calls, note)
    )


def assert_no_unmocked(calls: Sequence[C], mocked: Callable[[C], bool], *, note: Note[C] | None = None) -> None:
    """Fail if a call reached a real tool, or was refused because nothing answered it.

    Args:
        calls: Calls that were made.
        mocked: Whether a call was answered by a mock.
        note: Returns what the table says of a call, besides its tool and arguments.

    Raises:
        AssertionError: If the assertion fails. The message lists all calls.
    """
    __tracebackhide__ = True
    others = [call for call in calls if not mocked(call)]
    if others:
        paths = ", ".join(dict.fromkeys(path_of(call) for call in others))
        raise AssertionError(
            _message(f"{len(others)} of {_count(calls)} not answered by a mock: {paths}.", calls, note)
        )


def table(calls: Sequence[C], note: Note[C] | None = None) -> str:
    """Format calls as numbered lines: step, tool, arguments, and a note.

    Args:
        calls: Calls that were made.
        note: Returns a note about a call; `""` for none.

    Returns:
        One line per call, without a newline at the end; of very many calls the first and the last.
    """
    shown_rows = list(enumerate(calls, 1))
    left_out = len(shown_rows) - ROWS
    if left_out > 0:
        shown_rows = shown_rows[: ROWS - 10] + shown_rows[-10:]
    cells = [
        (
            str(number),
            f"step {call.step_index}",
            path_of(call),
            format_value(call.args, ARGUMENTS),
            note(call) if note else "",
        )
        for number, call in shown_rows
    ]
    widths = [max((len(row[column]) for row in cells), default=0) for column in range(4)]
    lines = [
        f"  {number:>{widths[0]}}  {step:<{widths[1]}}  {path:<{widths[2]}}  {args:<{widths[3]}}  {said}".rstrip()
        for number, step, path, args, said in cells
    ]
    if left_out > 0:
        lines.insert(ROWS - 10, f"  … {left_out:,} more calls …")
    return "\n".join(lines)


def _message(reason: str, calls: Sequence[C], note: Note[C] | None) -> str:
    return f"{reason}\nCalls:\n{table(calls, note)}" if calls else f"{reason} No tool was called at all."


def _near(calls: Sequence[SeenCall], pattern: str, args: object) -> str:
    same_tool = calls_of(calls, pattern)
    if same_tool:
        # Of the call with the fewest differences, which is most likely the one that was meant.
        lines = min((argument_differences(args, call.args) for call in same_tool[:ROWS]), key=len)
        return (
            f" It was called {_times(len(same_tool))} with other arguments; the nearest differs in {'; '.join(lines)}."
        )
    names = list(dict.fromkeys(name for call in calls for name in (path_of(call), call.tool_name)))
    close = get_close_matches(pattern, names, n=1)
    return f" Did you mean {close[0]}?" if close else ""


def _position(calls: Sequence[C], wanted: C) -> int:
    return next(position for position, call in enumerate(calls) if call is wanted)


def _times(number: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(number, f"{number} times")


def _count(calls: Sequence[object]) -> str:
    return "1 call was" if len(calls) == 1 else f"{len(calls)} calls were"
