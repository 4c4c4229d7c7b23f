"""What is about to happen in a run, and what came of it: calls, results and the words both are made of."""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from hookline._frozen import read_only
from hookline.errors import HookUsageError, message_of

__all__ = [
    "AgentCall",
    "AgentResult",
    "CompactCall",
    "CompactResult",
    "Denial",
    "Message",
    "ModelCall",
    "ModelResponse",
    "StepCall",
    "StepResult",
    "SubAgentCall",
    "ToolCall",
    "ToolCalling",
    "ToolResult",
    "ToolSpec",
    "Usage",
    "as_tool_result",
]


class ToolCalling(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A tool call as the model asked for it.

    Attributes:
        identifier: Where the tool comes from: `"local"` for a Python function, the server's name for MCP.
        api_name: The tool's name there.
        args: The arguments as a JSON object, or the model's raw text where it was not parsed.
        tool_call_id: The model's id of this call, unique within the answer.
    """

    identifier: str = "local"
    api_name: str
    args: dict[str, Any] | str = {}
    tool_call_id: str

    def __post_init__(self) -> None:
        if isinstance(self.args, dict):
            msgspec.structs.force_setattr(self, "args", read_only(self.args))


class Usage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What model calls used.

    Attributes:
        input_tokens: Tokens read.
        output_tokens: Tokens written.
        cost_usd: Price in US dollars.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cost_usd=self.cost_usd + other.cost_usd,
        )


class Message(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One message of a conversation.

    Attributes:
        role: Who speaks.
        content: The text.
        tool_calls: What an assistant message asks for.
        tool_call_id: Which call a tool message answers.
    """

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    tool_calls: list[ToolCalling] = []
    tool_call_id: str | None = None


class ToolSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A tool as a model sees it.

    Attributes:
        identifier: Where the tool comes from: `"local"` for a Python function.
        name: Its name there.
        description: What it does, for the model.
        schema: JSON Schema of its arguments.
    """

    identifier: str = "local"
    name: str
    description: str = ""
    schema: dict[str, Any] = {}


class AgentCall(msgspec.Struct, frozen=True, kw_only=True):
    """A whole run is about to start.

    Attributes:
        input: The messages that the user gives to the run.
        instructions: The agent's system message.
        tools: The tools that the model will be offered.
        operation_id: The run.
        tenant_id: Whose run it is.
        metadata: Shared by every hook of this call, before and after.
    """

    input: list[Message]
    instructions: str = ""
    tools: list[ToolSpec] = []
    operation_id: str = ""
    tenant_id: str = ""
    metadata: dict[str, Any] = {}


class AgentResult(msgspec.Struct, frozen=True, kw_only=True):
    """A whole run has ended.

    Attributes:
        output: The agent's final answer.
    """

    output: str


class StepCall(msgspec.Struct, frozen=True, kw_only=True):
    """A step of the loop is about to start.

    Attributes:
        step_index: The step, from 0.
        operation_id: The run.
        tenant_id: Whose run it is.
        metadata: Shared by every hook of this call, before and after.
    """

    step_index: int
    operation_id: str = ""
    tenant_id: str = ""
    metadata: dict[str, Any] = {}


class StepResult(msgspec.Struct, frozen=True, kw_only=True):
    """A step of the loop has ended.

    Attributes:
        should_continue: Whether another step follows.
        content: What the model said in it.
    """

    should_continue: bool
    content: str = ""


class ModelCall(msgspec.Struct, frozen=True, kw_only=True):
    """A model is about to be asked.

    Attributes:
        messages: The conversation, oldest first.
        tools: The tools that it may call.
        model: The model's name.
        settings: What the model's adapter should set (temperature and the like).
        operation_id: The run.
        tenant_id: Whose run it is.
        metadata: Shared by every hook of this call, before and after.
    """

    messages: list[Message]
    tools: list[ToolSpec] = []
    model: str = ""
    settings: dict[str, Any] = {}
    operation_id: str = ""
    tenant_id: str = ""
    metadata: dict[str, Any] = {}


class ModelResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A model's answer.

    Attributes:
        content: Its text.
        tool_calls: The tools that it wants to be called.
        reasoning: Its reasoning, where it shows any.
        usage: What the call used.
        finish_reason: Why it stopped, in the provider's words.
    """

    content: str = ""
    tool_calls: list[ToolCalling] = []
    reasoning: str = ""
    usage: Usage = Usage()
    finish_reason: str = "stop"


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A tool is about to be called.

    Attributes:
        identifier: Where the tool comes from.
        api_name: The tool's name there.
        args: The arguments, read-only. Text of the model that was no JSON object gives `{}`.
        tool_call_id: The model's id of this call.
        call_index: From 1, per tool and operation.
        step_index: The step that it belongs to, from 0.
        operation_id: The run.
        tenant_id: Whose run it is.
        metadata: Shared by every hook of this call, before and after.
    """

    identifier: str = "local"
    api_name: str
    args: dict[str, Any] = {}
    tool_call_id: str = ""
    call_index: int = 1
    step_index: int = 0
    operation_id: str = ""
    tenant_id: str = ""
    metadata: dict[str, Any] = {}


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
    metadata: dict[str, Any] = {}


class CompactCall(msgspec.Struct, frozen=True, kw_only=True):
    """The conversation is about to be compacted.

    Attributes:
        messages: The messages that a summary will replace.
        token_count: The input tokens that made it necessary.
        operation_id: The run.
        tenant_id: Whose run it is.
        metadata: Shared by every hook of this call, before and after.
    """

    messages: list[Message]
    token_count: int
    operation_id: str = ""
    tenant_id: str = ""
    metadata: dict[str, Any] = {}


class CompactResult(msgspec.Struct, frozen=True, kw_only=True):
    """The conversation has been compacted.

    Attributes:
        summary: What stands for the messages that were removed.
    """

    summary: str


class SubAgentCall(msgspec.Struct, frozen=True, kw_only=True):
    """A sub-agent is about to be called.

    Attributes:
        callee_id: The sub-agent.
        instruction: What it is asked to do.
        operation_id: The calling run.
        tenant_id: Whose run it is.
        metadata: Shared by every hook of this call, before and after.
    """

    callee_id: str
    instruction: str
    operation_id: str = ""
    tenant_id: str = ""
    metadata: dict[str, Any] = {}


class Denial(msgspec.Struct, frozen=True, kw_only=True):
    """A hook refused a call.

    Attributes:
        hook_id: The hook that refused.
        reason: Why, in its words.
    """

    hook_id: str
    reason: str


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
    if not isinstance(result.error_type, str | None):
        raise HookUsageError(f"`error_type` of an answer is text or None; got {type(result.error_type).__name__}.")
    if not isinstance(result.metadata, Mapping):
        raise HookUsageError(f"`metadata` of an answer is a mapping; got {type(result.metadata).__name__}.")
    return msgspec.structs.replace(result, metadata=read_only(result.metadata)) if result.metadata else result
