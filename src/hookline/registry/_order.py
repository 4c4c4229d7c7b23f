"""Choose priorities such that the hooks of one owner at one point run in a wanted order, changing few of them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise

from hookline.registry._definition import HookDefinition
from hookline.registry._errors import DefinitionError

__all__ = ["assign_priorities", "is_movable"]

HIGHEST = 1000
STEP = 10
"""Distance to a neighbour where there is room."""

Key = tuple[int, float, str]


def is_movable(definition: HookDefinition) -> bool:
    """Return whether the priority of a definition can be changed: not in a file, nor that of a control webhook."""
    return definition.is_stored and not (definition.webhook is not None and definition.webhook.control)


def assign_priorities(wanted: Sequence[HookDefinition]) -> dict[str, int]:
    """Choose priorities for definitions, so that they run in the given order.

    As many as possible keep theirs. One that moves gets a priority in the middle between its neighbours, or, if there
    is no room, the ones after it move too.

    Args:
        wanted: The definitions of one owner at one point, in the order in which they should run.

    Returns:
        The new priorities by id, without those that stay the same.

    Raises:
        DefinitionError: If the order is not possible, since definitions that cannot be changed are in another order,
            or leave no room.
    """
    keys = [_key(each, each.priority) for each in wanted]
    kept = _find_kept(wanted, keys)
    chosen: list[int] = []
    before: Key | None = None
    for place, definition in enumerate(wanted):
        if place in kept and (before is None or before < keys[place]):
            priority = definition.priority
        else:
            kept.discard(place)
            if not is_movable(definition):
                raise _no_room_error(definition)
            next_kept = min((other for other in kept if other > place), default=None)
            following = None if next_kept is None else keys[next_kept]
            count = (len(wanted) if next_kept is None else next_kept) - place
            priority = _choose(definition, before, following, count)
        chosen.append(priority)
        before = _key(definition, priority)
    if any(priority > HIGHEST for priority in chosen):
        chosen = _push_back(wanted, chosen)
    return {each.id: priority for each, priority in zip(wanted, chosen, strict=True) if priority != each.priority}


def _key(definition: HookDefinition, priority: int) -> Key:
    return priority, definition.created_at, definition.id


def _find_kept(wanted: Sequence[HookDefinition], keys: Sequence[Key]) -> set[int]:
    """Find the places of the most definitions that can keep their priorities; those that cannot move always do."""
    fixed = [place for place, each in enumerate(wanted) if not is_movable(each)]
    if any(keys[one] > keys[other] for one, other in pairwise(fixed)):
        raise _no_room_error(wanted[fixed[0]])
    bounds = [-1, *fixed, len(wanted)]
    found = set(fixed)
    for low, high in pairwise(bounds):
        inside = [
            place
            for place in range(low + 1, high)
            if (low < 0 or keys[low] < keys[place]) and (high == len(wanted) or keys[place] < keys[high])
        ]
        found.update(_longest_rising(inside, keys))
    return found


def _longest_rising(places: Sequence[int], keys: Sequence[Key]) -> list[int]:
    """Return the longest part of places whose keys rise."""
    ends: list[int] = []
    earlier: dict[int, int | None] = {}
    for place in places:
        at = bisect_left(ends, keys[place], key=keys.__getitem__)
        earlier[place] = ends[at - 1] if at else None
        ends[at : at + 1] = [place]
    found: list[int] = []
    last = ends[-1] if ends else None
    while last is not None:
        found.append(last)
        last = earlier[last]
    return found[::-1]


def _choose(definition: HookDefinition, before: Key | None, following: Key | None, count: int) -> int:
    """Choose a priority after one key and, if there is room, before another.

    Args:
        definition: The definition.
        before: The key of the definition that runs before it.
        following: The key of the next definition that keeps its priority.
        count: How many definitions need a place between the two.
    """
    low = 0 if before is None else before[0]
    if following is None:
        step = STEP if low + STEP * count <= HIGHEST else max(1, (HIGHEST - low) // (count + 1))
        middle = low + step
    elif before is None:
        middle = max(0, following[0] - STEP * count)
    else:
        middle = low + (following[0] - low) // (count + 1)
    fits = (before is None or before < _key(definition, middle)) and (
        following is None or _key(definition, middle) < following
    )
    if fits:
        return middle
    return low if before is None or before < _key(definition, low) else low + 1


def _push_back(wanted: Sequence[HookDefinition], chosen: list[int]) -> list[int]:
    """Lower priorities from the end, since some are too high."""
    pushed = list(chosen)
    after: Key | None = None
    for place in reversed(range(len(wanted))):
        definition = wanted[place]
        priority = min(pushed[place], HIGHEST)
        if after is not None and _key(definition, priority) >= after:
            priority = after[0] if _key(definition, after[0]) < after else after[0] - 1
        if priority < 0 or (priority != definition.priority and not is_movable(definition)):
            raise _no_room_error(definition)
        pushed[place] = priority
        after = _key(definition, priority)
    return pushed


def _no_room_error(definition: HookDefinition) -> DefinitionError:
    problem = (
        f"{definition.name!r} keeps its priority of {definition.priority}, since it is in a file or decides as a "
        "webhook, so this order is not possible; move the others around it"
    )
    return DefinitionError("invalid", "$.order", problem)
