"""What a tool call came to, and what a hook may give instead."""

from collections.abc import Mapping
from typing import Any

import msgspec

from hookline._error_root import message_of
from hookline._frozen import NO_DICT, ReadOnlyDict, freeze_dict
from hookline.errors import HookUsageError

__all__ = ["ToolResult", "as_tool_result", "tool_failure"]


class ToolResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a tool call came to.

    Attributes:
        content: The text that the model reads.
        success: Whether the tool did what it was asked for.
        error_type: Set when the tool raised: the exception's class name.
        metadata: What else the answer carries (rule, fault, cassette); it appears on the events.
    """

    content: str
    success: bool = True
    error_type: str | None = None
    metadata: dict[str, Any] = NO_DICT

    def __post_init__(self) -> None:
        kind = self.metadata.__class__
        if kind is not ReadOnlyDict and (kind is dict or isinstance(self.metadata, Mapping)):
            freeze_dict(self, "metadata", self.metadata)  # anything else is refused where the result is used


def as_tool_result(answer: object) -> ToolResult:
    """What a hook answers in a tool's place, as a `ToolResult`.

    Args:
        answer: A `ToolResult`, a `str` (also empty), a mapping with `content` and optionally `success` and
            `metadata`, or an `Exception`, which counts as raised by the tool.

    Raises:
        HookUsageError: If it is anything else.
    """
    if isinstance(answer, str):
        return ToolResult(content=answer)
    if isinstance(answer, ToolResult):
        return _checked(answer)
    if isinstance(answer, Mapping):
        unknown = [key for key in answer if key not in ("content", "success", "metadata")]
        if unknown or "content" not in answer:
            raise HookUsageError(
                f"An answer given as a mapping has `content` and optionally `success` and `metadata`; got the keys "
                f"{', '.join(map(str, answer)) or 'none'}."
            )
        return _checked(ToolResult(**answer))
    if isinstance(answer, Exception):
        return tool_failure(answer)
    raise HookUsageError(
        f"A tool call is answered with a ToolResult, a str, a mapping with `content`, or an Exception instance; "
        f"got {type(answer).__name__}."
    )


def tool_failure(error: BaseException) -> ToolResult:
    """The result of a tool that raised."""
    return ToolResult(content=message_of(error), success=False, error_type=type(error).__name__)


def _checked(result: ToolResult) -> ToolResult:
    if not isinstance(result.content, str):
        raise HookUsageError(f"`content` of an answer is text; got {type(result.content).__name__}.")
    if not isinstance(result.success, bool):
        raise HookUsageError(f"`success` of an answer is True or False; got {result.success!r}.")
    if result.error_type is not None and not isinstance(result.error_type, str):
        raise HookUsageError(f"`error_type` of an answer is text or None; got {type(result.error_type).__name__}.")
    if result.metadata.__class__ is not ReadOnlyDict and not isinstance(result.metadata, Mapping):
        raise HookUsageError(f"`metadata` of an answer is a mapping; got {type(result.metadata).__name__}.")
    return result
