"""What all ready-made hooks have in common: the options of their bundle, and how a wrong number is refused."""

import math
from typing import Any, TypedDict

from hookline.errors import HookDefinitionError

__all__ = ["BundleOptions", "check_number", "with_defaults"]


class BundleOptions(TypedDict, total=False):
    """What every ready-made hook takes beside its own options; the same as of `Hooks`.

    Attributes:
        id: Name of the bundle, and `hook_id` of its denials and records; the factory's own name unless given.
        priority: Its place, 0 (outermost) to 1000. What changes a call on the way in stands at the mirrored place,
            `1000 - priority`, so that it comes last there too.
        tenant_id: Only for runs of this tenant; `""` for every tenant.
        inherit: Whether it goes along into the operations of sub-agents; it does unless told otherwise.
    """

    id: str
    priority: int
    tenant_id: str
    inherit: bool


def with_defaults(id: str, priority: int, given: BundleOptions) -> dict[str, Any]:  # noqa: A002
    """The arguments of a ready-made bundle."""
    return {"id": id, "priority": priority, "inherit": True, **given}


def check_number(where: str, name: str, value: object, *, least: float = 0, whole: bool = False) -> None:
    """Refuse what is no finite number, or too small a one.

    Args:
        where: How the error names the hook.
        name: How it names the argument.
        value: What was given.
        least: The smallest number that makes sense; 0 stands for "more than nothing".
        whole: Whether it must be an `int`.

    Raises:
        HookDefinitionError: That says what would be right.
    """
    kind = "a whole number" if whole else "a number"
    wanted = f"{kind} from {least:g}" if least else f"{kind} above 0"
    number = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or (value < least if least else value <= 0):  # type: ignore[arg-type, operator]
        raise HookDefinitionError(where, f"`{name}` is {wanted}; got {value!r}")
