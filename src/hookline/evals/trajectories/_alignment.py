"""Align the calls of an agent with the expected calls: the pairs that are worth most, in order or in any order."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable, Sequence

from hookline.errors import HookUsageError

__all__ = ["FULL", "MOST_PAIRS", "PARTIAL", "Pairs", "align_in_any_order", "align_in_order"]

FULL = 2
"""The worth of a pair of equal calls."""
PARTIAL = 1
"""The worth of two calls of one tool with different arguments."""

MOST_PAIRS = 4_000_000
"""How many pairs of calls are compared at most, once what is obviously equal has been set aside: 2,000 calls by 2,000.
They take some 20 MB and, if all are of one tool with different arguments, up to ten seconds."""

Worth = Callable[[int, int], int]
"""Returns the worth of an actual and an expected call, given by their places, as a pair: 0, `PARTIAL` or `FULL`."""

Pairs = list[tuple[int, int, int]]
"""The places of an actual and an expected call, and their worth."""


def align_in_order(actual: int, expected: int, worth: Worth) -> Pairs:
    """Pair calls so that no two pairs cross and their total worth is as large as possible.

    Args:
        actual: How many actual calls there are.
        expected: How many expected ones.
        worth: Returns the worth of two calls as a pair.

    Raises:
        HookUsageError: If there are too many, and they have too little in common at their start and end.
    """
    # Calls that are equal at the start and at the end can be paired without a loss: whatever pairs one of them in a
    # best alignment can be exchanged for that pair.
    start = 0
    while start < min(actual, expected) and worth(start, start) == FULL:
        start += 1
    end = 0
    while end < min(actual, expected) - start and worth(actual - 1 - end, expected - 1 - end) == FULL:
        end += 1
    inner = _align_middle(range(start, actual - end), range(start, expected - end), worth)
    head = [(place, place, FULL) for place in range(start)]
    tail = [(actual - end + place, expected - end + place, FULL) for place in range(end)]
    return head + inner + tail


def _align_middle(actual: range, expected: range, worth: Worth) -> Pairs:
    rows = _table(actual, expected, worth)
    best = [array("I", bytes(4 * (len(expected) + 1)))]
    for row in rows:
        above = best[-1]
        line = [0]
        for column, value in enumerate(row):
            most = max(line[column], above[column + 1])
            line.append(max(most, above[column] + value) if value else most)
        best.append(array("I", line))
    pairs: Pairs = []
    one, other = len(actual), len(expected)
    while one and other:
        value = rows[one - 1][other - 1]
        if value and best[one][other] == best[one - 1][other - 1] + value:
            one, other = one - 1, other - 1
            pairs.append((actual[one], expected[other], value))
        elif best[one][other] == best[one - 1][other]:
            one -= 1
        else:
            other -= 1
    return pairs[::-1]


def align_in_any_order(actual: Sequence[Hashable], expected: Sequence[Hashable], worth: Worth) -> Pairs:
    """Pair calls in any order: as many equal ones as possible, then as many of one tool as possible.

    Args:
        actual: A key for each actual call; `None` for one that has none.
        expected: A key for each expected call. Calls with the same key are equal to the same calls.
        worth: Returns the worth of two calls as a pair.

    Returns:
        The pairs, in the order of the expected calls.

    Raises:
        HookUsageError: If there are too many that have no call of the same key on the other side.
    """
    pairs = _pair_equal_calls(actual, expected, worth)
    ours = _places_left(len(actual), [pair[0] for pair in pairs])
    theirs = _places_left(len(expected), [pair[1] for pair in pairs])
    rows = _table(ours, theirs, worth)
    gone: set[int] = set()
    free = (1 << len(theirs)) - 1
    for value in (FULL, PARTIAL):
        found = _most_pairs([0 if one in gone else _mask(row, value) & free for one, row in enumerate(rows)])
        pairs += [(ours[one], theirs[other], value) for one, other in found]
        gone.update(one for one, _ in found)
        free &= ~sum(1 << other for _, other in found)
    return sorted(pairs, key=lambda pair: pair[1])


def _pair_equal_calls(actual: Sequence[Hashable], expected: Sequence[Hashable], worth: Worth) -> Pairs:
    waiting: dict[Hashable, list[int]] = {}
    for place in reversed(range(len(actual))):
        if actual[place] is not None:
            waiting.setdefault(actual[place], []).append(place)
    pairs: Pairs = []
    for place, key in enumerate(expected):
        places = waiting.get(key)
        # Keys are texts, and different values may have the same text.
        if places and worth(places[-1], place) == FULL:
            pairs.append((places.pop(), place, FULL))
    return pairs


def _places_left(count: int, paired: Sequence[int]) -> list[int]:
    taken = set(paired)
    return [place for place in range(count) if place not in taken]


def _mask(row: bytes, value: int) -> int:
    """Return a bit mask of the columns of a row that have a value; the first column is the lowest bit."""
    bits = bytes(ord("1") if number == value else ord("0") for number in range(256))
    return int(row[::-1].translate(bits) or b"0", 2)


def _most_pairs(masks: Sequence[int]) -> list[tuple[int, int]]:
    """Find a largest set of pairs of rows and columns in which none occurs twice.

    A row's mask has the bits of its columns.

    Source:
        Augmenting paths, searched in breadth (Berge 1957). A set of columns from which a search found nothing free is
        left out of all later ones, since nothing there will ever be free.
    """
    row_of: dict[int, int] = {}
    column_of: dict[int, int] = {}
    hopeless = 0
    for start in range(len(masks)):
        came_from: dict[int, int] = {}
        column = _free_column(masks, row_of, [start], came_from, hopeless)
        if column is None:
            hopeless |= sum(1 << each for each in came_from)
        while column is not None:
            row = came_from[column]
            row_of[column], column_of[row], column = row, column, column_of.get(row)
    return list(column_of.items())


def _free_column(
    masks: Sequence[int], row_of: dict[int, int], queue: list[int], came_from: dict[int, int], reached: int
) -> int | None:
    for row in queue:
        fresh = masks[row] & ~reached
        reached |= fresh
        while fresh:
            column = (fresh & -fresh).bit_length() - 1
            fresh &= fresh - 1
            came_from[column] = row
            if column not in row_of:
                return column
            queue.append(row_of[column])
    return None


def _table(actual: Sequence[int], expected: Sequence[int], worth: Worth) -> list[bytes]:
    if len(actual) * len(expected) > MOST_PAIRS:
        raise HookUsageError(
            f"{len(actual):,} actual and {len(expected):,} expected calls that are not equal in an obvious way are too "
            "many to align. Compare parts of the trajectories, or assert on the calls that matter with `assert_called`."
        )
    return [bytes(worth(one, other) for other in expected) for one in actual]
