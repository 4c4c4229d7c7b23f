"""What is about to happen in a run, what came of it, and what a hook may decide about it."""

from collections.abc import Mapping
from typing import Any

import msgspec

from hookline._frozen import (
    NO_DICT,
    NO_LIST,
    ReadOnlyDict,
    ReadOnlyList,
    freeze_dict,
    freeze_list,
    read_only_value,
)
from hookline._messages import Message, ToolCalling, ToolSpec, Usage
from hookline._tool_result import ToolResult, as_tool_result, tool_failure

__all__ = [
    "CALLS",
    "DECISIONS",
    "AgentCall",
    "AgentResult",
    "Ask",
    "Call",
    "CompactCall",
    "CompactResult",
    "Continue",
    "Denial",
    "Deny",
    "MemoryCall",
    "MemoryResult",
    "Message",
    "ModelCall",
    "ModelResponse",
    "RequestCall",
    "RequestResult",
    "Respond",
    "StepCall",
    "StepResult",
    "SubAgentCall",
    "ToolCall",
    "ToolCalling",
    "ToolResult",
    "ToolSpec",
    "Usage",
    "as_tool_result",
    "tool_failure",
]


def freeze_messages(struct: msgspec.Struct, name: str, messages: object) -> None:
    """Inside of `__post_init__`: make a list of messages read-only, with the lists of tool calls that they hold."""
    if messages is NO_LIST:
        return
    freeze_list(struct, name, messages)
    for message in getattr(struct, name):
        if isinstance(message, Message) and message.tool_calls.__class__ is not ReadOnlyList:
            freeze_list(message, "tool_calls", message.tool_calls)


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """What is about to happen. A hook changes it with `msgspec.structs.replace`; its values are read-only.

    Attributes:
        operation_id: The run.
        agent_id: Who runs.
        user_id: The user for whom it runs.
        tenant_id: The tenant for whom it runs.
        metadata: Shared by every hook of this call, before and after; the one thing that may be changed in place.
    """

    operation_id: str = ""
    agent_id: str = ""
    user_id: str = ""
    tenant_id: str = ""
    metadata: dict[str, Any] = {}


class AgentCall(Call, frozen=True, kw_only=True):
    """A whole run is about to start, or to go on with the input that a `Continue` gave.

    Attributes:
        input: The messages that the user gives to the run; a text becomes one message.
        instructions: The agent's system message.
        tools: The tools that the model will be offered.
    """

    input: list[Message]
    instructions: str = ""
    tools: list[ToolSpec] = NO_LIST

    def __post_init__(self) -> None:
        given: object = self.input
        freeze_messages(self, "input", [Message(role="user", content=given)] if isinstance(given, str) else given)
        freeze_list(self, "tools", self.tools)


class AgentResult(msgspec.Struct, frozen=True, kw_only=True):
    """A whole run has ended.

    Attributes:
        output: The agent's final answer.
        reason: Why it ended, as in `OnComplete.reason`.
    """

    output: str
    reason: str = "done"


class StepCall(Call, frozen=True, kw_only=True):
    """A step of the loop is about to start.

    Attributes:
        step_index: The step, from 0.
    """

    step_index: int


class StepResult(msgspec.Struct, frozen=True, kw_only=True):
    """A step of the loop has ended.

    Attributes:
        should_continue: Whether another step follows.
        content: What the model said in it.
    """

    should_continue: bool
    content: str = ""


class ModelCall(Call, frozen=True, kw_only=True):
    """A model is about to be asked.

    Attributes:
        messages: The conversation, oldest first.
        tools: The tools that it may call.
        model: The model's name.
        settings: What the model's adapter should set (temperature and the like).
        step_index: The step that it belongs to, from 0.
    """

    messages: list[Message]
    tools: list[ToolSpec] = NO_LIST
    model: str = ""
    settings: dict[str, Any] = NO_DICT
    step_index: int = 0

    def __post_init__(self) -> None:
        if self.messages is not NO_LIST:
            freeze_messages(self, "messages", self.messages)
        if self.tools.__class__ is not ReadOnlyList:
            freeze_list(self, "tools", self.tools)
        if self.settings.__class__ is not ReadOnlyDict:
            freeze_dict(self, "settings", self.settings)


class ModelResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A model's answer.

    Attributes:
        content: Its text.
        tool_calls: The tools that it wants to be called.
        reasoning: Its reasoning, where it shows any.
        usage: What the call used.
        finish_reason: Why it stopped, in the provider's words.
        model: The model that answered, in the provider's words; `""` where nobody says.
        response_id: The provider's id of the answer.
        details: JSON that the model's adapter wants back with this message in later calls, such as signatures of its
            reasoning; for nobody else to read.
    """

    content: str = ""
    tool_calls: list[ToolCalling] = NO_LIST
    reasoning: str = ""
    usage: Usage = Usage()
    finish_reason: str = "stop"
    model: str = ""
    response_id: str = ""
    details: dict[str, Any] = NO_DICT

    def __post_init__(self) -> None:
        if isinstance(self.tool_calls, list):  # anything else is refused where the answer is used
            freeze_list(self, "tool_calls", self.tool_calls)
        if self.details.__class__ is not ReadOnlyDict:
            freeze_dict(self, "details", self.details)


class ToolCall(Call, frozen=True, kw_only=True):
    """A tool is about to be called.

    Attributes:
        identifier: Where the tool comes from.
        api_name: The tool's name there.
        args: The arguments, read-only. Text of the model that was no JSON object gives `{}`.
        tool_call_id: The model's id of this call.
        call_index: From 1, per tool and operation.
        step_index: The step that it belongs to, from 0.
    """

    identifier: str = "local"
    api_name: str
    args: dict[str, Any] = {}
    tool_call_id: str = ""
    call_index: int = 1
    step_index: int = 0

    def __post_init__(self) -> None:
        if self.args.__class__ is not ReadOnlyDict:
            freeze_dict(self, "args", self.args)

    def with_args(self, **changed: Any) -> "ToolCall":
        """This call with some arguments changed, and the others as they are."""
        return msgspec.structs.replace(self, args={**self.args, **changed})


class CompactCall(Call, frozen=True, kw_only=True):
    """The conversation is about to be compacted.

    Attributes:
        messages: The messages that a summary will replace.
        token_count: The input tokens that made it necessary.
    """

    messages: list[Message]
    token_count: int

    def __post_init__(self) -> None:
        freeze_messages(self, "messages", self.messages)


class CompactResult(msgspec.Struct, frozen=True, kw_only=True):
    """The conversation has been compacted.

    Attributes:
        summary: What stands for the messages that were removed.
    """

    summary: str


class SubAgentCall(Call, frozen=True, kw_only=True):
    """A sub-agent is about to be called. Its result is an `AgentResult`; one that failed has a `reason` of its own.

    Attributes:
        callee_id: The sub-agent.
        instruction: What it is asked to do.
    """

    callee_id: str
    instruction: str


class RequestCall(Call, frozen=True, kw_only=True):
    """An HTTP request is about to be answered.

    Attributes:
        method: `"GET"`, `"POST"`, …
        path: The path, percent-decoded.
        headers: By lower-case name; several of one name are joined with `", "`.
    """

    method: str
    path: str
    headers: dict[str, str] = {}

    def __post_init__(self) -> None:
        freeze_dict(self, "headers", self.headers)


class RequestResult(msgspec.Struct, frozen=True, kw_only=True):
    """An HTTP request has been answered.

    Attributes:
        status: The status code.
        headers: By lower-case name. Changes are sent; one header of several of the same name stands for all of them.
        body: What a hook answers. Of an answer of the application always empty: it is never held back.
        duration_ms: From the request to the start of the answer.
    """

    status: int
    headers: dict[str, str] = {}
    body: bytes = b""
    duration_ms: float = 0.0

    def __post_init__(self) -> None:
        freeze_dict(self, "headers", self.headers)


class MemoryCall(Call, frozen=True, kw_only=True):
    """Something is about to be written to memory: a session's history, after each of its tasks.

    Attributes:
        key: Under which it is kept: for a history, the session's id.
        value: What is kept: for a history, the list of its messages.
    """

    key: str
    value: Any

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "value", read_only_value(self.value))


class MemoryResult(msgspec.Struct, frozen=True, kw_only=True):
    """Memory has been written.

    Attributes:
        stored: Whether the value is kept.
    """

    stored: bool = True


CALLS: Mapping[type[Call], type[msgspec.Struct]] = {
    AgentCall: AgentResult,
    StepCall: StepResult,
    ModelCall: ModelResponse,
    ToolCall: ToolResult,
    CompactCall: CompactResult,
    SubAgentCall: AgentResult,
    RequestCall: RequestResult,
    MemoryCall: MemoryResult,
}
"""The eight calls, and what comes of each."""


class Deny(msgspec.Struct, frozen=True):
    """The call must not happen; or, from an `after` hook, its result must not be seen.

    Attributes:
        reason: Why. The model reads it, where it asked for the call.
        stop: Whether a denied tool or sub-agent call ends the run too.
    """

    reason: str
    stop: bool = False


class Respond(msgspec.Struct, frozen=True):
    """The answer to a call that is not to happen.

    Attributes:
        answer: The call's result, or text, a mapping of the result's fields, or an `Exception` that counts as raised.
    """

    answer: Any


class Ask(msgspec.Struct, frozen=True):
    """A person must decide. A tool call waits for that; anywhere else it is a denial.

    Attributes:
        prompt: What the person is asked.
    """

    prompt: str


class Continue(msgspec.Struct, frozen=True):
    """The run is to go on with more input, although the agent is done. For `after(AgentCall)` only.

    Attributes:
        input: What the user says next; an empty one is ignored.
    """

    input: str


DECISIONS = (Deny, Ask, Respond, Continue, ToolResult)
"""What only interceptors may return: from an observer, a phase hook or a hook with `wait=False` it is an error."""


class Denial(msgspec.Struct, frozen=True, kw_only=True):
    """A hook refused a call.

    Attributes:
        hook_id: The hook that refused.
        reason: Why, in its words.
    """

    hook_id: str
    reason: str
