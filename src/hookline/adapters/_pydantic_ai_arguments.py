"""Arguments of a tool call of Pydantic AI: as the model gave them, and as the tool takes them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.tools import RunContext
from pydantic_ai.toolsets import ToolsetTool
from pydantic_core import to_jsonable_python

__all__ = ["as_it_will_run", "may_change", "validated"]

_SEAMS = ("before_tool_validate", "wrap_tool_validate", "after_tool_validate")


def may_change(ctx: RunContext[Any]) -> bool:
    """Whether another capability of the run may change arguments before a call is led."""
    return any(
        getattr(type(each), seam, None) is not getattr(AbstractCapability, seam)
        for each in ctx.capabilities.values()
        for seam in _SEAMS
    )


def as_it_will_run(
    ctx: RunContext[Any], tool: ToolsetTool[Any], part: ToolCallPart, args: dict[str, Any]
) -> dict[str, Any]:
    """The arguments of a call: as the model gave them, but for those that another capability has changed.

    Args:
        ctx: The run.
        tool: The tool.
        part: The call.
        args: Its arguments as the tool takes them.
    """
    try:
        own = _plain_values(_read(ctx, tool, part.args))
    except Exception:  # another capability has mended what is wrong with them
        own = {}
    given, final = part.args_as_dict(), _plain_values(args)
    if own == final:
        return given
    shown = {name: value for name, value in given.items() if name in final}
    return shown | {name: value for name, value in final.items() if name not in own or own[name] != value}


async def validated(ctx: RunContext[Any], tool: ToolsetTool[Any], final: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments that a hook has changed, as the tool takes them."""
    taken = _read(ctx, tool, _plain(final))
    if tool.args_validator_func is not None:
        judged = tool.args_validator_func(ctx, **taken)
        if inspect.isawaitable(judged):
            await judged
    return taken


def _read(ctx: RunContext[Any], tool: ToolsetTool[Any], args: str | dict[str, Any] | None) -> dict[str, Any]:
    validator, context = tool.args_validator, ctx.validation_context
    read: dict[str, Any] = (
        validator.validate_json(args or "{}", context=context)
        if isinstance(args, str)
        else validator.validate_python(args or {}, context=context)
    )
    return read


def _plain_values(args: Mapping[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = to_jsonable_python(dict(args), bytes_mode="base64", fallback=str)
    return plain


def _plain(value: Any) -> Any:
    """Arguments as their own, with lists and objects that may be changed."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value
