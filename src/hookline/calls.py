"""Calls, results and decisions: the arguments and return values of interceptors."""

from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec
from msgspec.structs import force_setattr

from hookline._readonly import (
    NO_DICT,
    NO_LIST,
    NotStored,
    ReadOnlyDict,
    ReadOnlyList,
    freeze_dict,
    freeze_list,
    read_only,
    read_only_value,
)
from hookline.errors import HookUsageError, message_of

__all__ = [
    "CALLS",
    "DECISIONS",
    "AddedContext",
    "AgentCall",
    "AgentResult",
    "Ask",
    "Call",
    "CompactCall",
    "CompactResult",
    "Continue",
    "Denial",
    "Deny",
    "Guide",
    "MemoryCall",
    "MemoryResult",
    "Message",
    "ModelCall",
    "ModelResponse",
    "PartialResponse",
    "RequestCall",
    "RequestResult",
    "Respond",
    "StepCall",
    "StepResult",
    "SubAgentCall",
    "ToolCall",
    "ToolRequest",
    "ToolResult",
    "ToolSpec",
    "Usage",
    "as_tool_result",
    "tool_failure",
]


class ToolResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a tool call.

    Attributes:
        content: The text that the model reads.
        success: Whether the call succeeded.
        error_type: The class name of the exception, if the tool raised.
        metadata: More about the result, such as the rule, fault or cassette that answered. Events show it.
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
    """Convert the answer of a hook to a `ToolResult`.

    Args:
        answer: A `ToolResult`, a `str` (also empty), a mapping with `content` and optionally `success` and
            `metadata`, or an `Exception`, which counts as raised by the tool.

    Raises:
        HookUsageError: If it is anything else.
    """
    if isinstance(answer, str):
        return ToolResult(content=answer)
    if isinstance(answer, ToolResult):
        return check_result(answer)
    if isinstance(answer, Mapping):
        unknown = [key for key in answer if key not in ("content", "success", "metadata")]
        if unknown or "content" not in answer:
            raise HookUsageError(
                f"An answer that is a mapping must have `content`, and can have `success` and `metadata`; got the keys "
                f"{', '.join(map(str, answer)) or 'none'}."
            )
        return check_result(ToolResult(**answer))
    if isinstance(answer, Exception):
        return tool_failure(answer)
    raise HookUsageError(
        f"The answer to a tool call must be a ToolResult, a str, a mapping with `content`, or an Exception instance; "
        f"got {type(answer).__name__}."
    )


def tool_failure(error: BaseException) -> ToolResult:
    """Return the result of a tool that raised."""
    return ToolResult(content=message_of(error), success=False, error_type=type(error).__name__)


def check_result(result: ToolResult) -> ToolResult:
    """Refuse a result with a field of the wrong type; its struct is not checked when code makes it.

    Raises:
        HookUsageError: If a field has the wrong type.
    """
    if not isinstance(result.content, str):
        raise HookUsageError(f"`content` of an answer must be a str; got {type(result.content).__name__}.")
    if not isinstance(result.success, bool):
        raise HookUsageError(f"`success` of an answer must be True or False; got {result.success!r}.")
    if result.error_type is not None and not isinstance(result.error_type, str):
        raise HookUsageError(
            f"`error_type` of an answer must be a str or None; got {type(result.error_type).__name__}."
        )
    if result.metadata.__class__ is not ReadOnlyDict and not isinstance(result.metadata, Mapping):
        raise HookUsageError(f"`metadata` of an answer must be a mapping; got {type(result.metadata).__name__}.")
    return result


class _ByPosition(msgspec.StructMeta):
    """Checks the arguments of `ToolRequest` when Python code makes one; decoding has checks of its own."""

    if not TYPE_CHECKING:

        def __call__(cls, *given, **fields):  # noqa: N805  (a metaclass)
            if not given and fields.get("tool_name", "").__class__ is str:
                return super().__call__(**fields)
            name = given[0] if given else fields["tool_name"]
            if len(given) > 2 or not isinstance(name, str):
                problem = f"got {len(given)} by position" if len(given) > 2 else f"the name is {name!r:.100}"
                raise HookUsageError(f"A ToolRequest takes a tool's name and its arguments; {problem}. {SPELLING}")
            if len(given) == 2:
                if not isinstance(given[1], Mapping):
                    problem = f"arguments as a mapping; got {given[1]!r:.100}"
                    raise HookUsageError(f"A ToolRequest takes {problem}. {SPELLING}")
                given = (name, dict(given[1]))
            return super().__call__(*given, **fields)


SPELLING = 'Write ToolRequest("search", {"q": "tea"}), with `toolset` and `tool_call_id` by keyword.'


class _RequestFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel", metaclass=_ByPosition):
    toolset: str = msgspec.field(default="local", name="identifier")
    tool_call_id: str = ""


class ToolRequest(_RequestFields, frozen=True):
    """A tool call that a model requests: `ToolRequest("search", {"q": "tea"})`.

    Attributes:
        tool_name: The tool's name in its toolset; can be given by position.
        args: The arguments as a JSON object; can be given by position. By keyword, you can also give the model's raw
            text if it is not a JSON object: it is kept, and the model reads that it is invalid.
        toolset: Where the tool comes from: `"local"` for a Python function, or the name of the MCP server.
        tool_call_id: The model's id of this call, unique within its response. If it is empty, the run sets
            `t<step>.<position>`.

    Raises:
        HookUsageError: If more than two values are given by position, the name is not a string, or arguments given by
            position are not a mapping.
    """

    tool_name: str = msgspec.field(name="apiName")
    args: dict[str, Any] | str = {}

    def __post_init__(self) -> None:
        if isinstance(self.args, dict) and self.args.__class__ is not ReadOnlyDict:
            force_setattr(self, "args", read_only(self.args))


class Usage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Tokens and cost of model calls.

    Attributes:
        input_tokens: Input tokens.
        output_tokens: Output tokens.
        cost_usd: Cost in US dollars.
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
        role: The author of the message.
        content: The text.
        tool_calls: The tool calls of an assistant message.
        tool_call_id: The call that a tool message answers.
        details: Data that the model's adapter needs with an assistant message, such as signatures of its reasoning. A
            message that hooks have added has their ids, as a list under `"hookline.hooks"`.
    """

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    tool_calls: list[ToolRequest] = NO_LIST
    tool_call_id: str | None = None
    details: dict[str, Any] = NO_DICT


class ToolSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The name, description and schema of a tool, as a model sees them.

    Attributes:
        toolset: Where the tool comes from: `"local"` for a Python function.
        name: The tool's name there.
        description: What the tool does, for the model.
        schema: JSON Schema of the arguments.
    """

    toolset: str = msgspec.field(default="local", name="identifier")
    name: str
    description: str = ""
    schema: dict[str, Any] = NO_DICT

    def __post_init__(self) -> None:
        if self.schema.__class__ is not ReadOnlyDict:
            freeze_dict(self, "schema", self.schema)


def freeze_messages(struct: msgspec.Struct, name: str, messages: object) -> None:
    """Make a list of messages and their tool calls read-only, inside of `__post_init__`."""
    if messages is NO_LIST or messages.__class__ is NotStored:
        return
    freeze_list(struct, name, messages)
    for message in getattr(struct, name):
        if isinstance(message, Message) and message.tool_calls.__class__ is not ReadOnlyList:
            freeze_list(message, "tool_calls", message.tool_calls)


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """Base class of calls. They are read-only; make a changed copy with `msgspec.structs.replace`.

    Attributes:
        operation_id: The run.
        agent_id: The agent.
        user_id: The user for whom it runs.
        tenant_id: The tenant for whom it runs.
        parent_operation_id: The run that called the agent; `None` if it is no sub-agent.
        tags: The tags of the run.
        metadata: A dictionary that all hooks of the call share. It is the only part that you can change in place.
    """

    operation_id: str = ""
    agent_id: str = ""
    user_id: str = ""
    tenant_id: str = ""
    parent_operation_id: str | None = None
    tags: tuple[str, ...] = ()
    metadata: dict[str, Any] = {}


class AddedContext(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A text that a hook has added to a call for the model.

    Attributes:
        hook_id: The hook.
        text: The text; an empty one is not shown to the model.
        nth: How many hooks with the same id come before this one, as ids need not be unique.
    """

    hook_id: str
    text: str
    nth: int = 0


class ContextTaker(Protocol):
    """A chain that is running a call, and takes what the hooks add to it.

    Attributes:
        context: The texts that it has.
    """

    context: tuple[AddedContext, ...]

    def take_context(self, text: str) -> None:
        """Take a text from the hook whose turn it is.

        Raises:
            HookUsageError: If it is no hook's turn.
        """
        ...


context_takers: dict[int, ContextTaker] = {}
"""What runs a call now, by the id of the call's `metadata`, which all copies of the call share.

It is found here, and not in the call, as calls are compared, shown and sent as their fields are.
"""

background_of: ContextVar[object] = ContextVar("hookline_background_of", default=None)
"""The `metadata` of the call beside which a background hook runs; other hooks of that call may have their turn."""


shadow_of: ContextVar[object] = ContextVar("hookline_shadow_of", default=None)
"""The `metadata` of the copy of a call that a shadow hook judges; text that it adds reaches nobody."""


def _add_context(call: Call, text: object) -> None:
    name = type(call).__name__
    if not isinstance(text, str):
        raise HookUsageError(f"{name}.add_context takes a text for the model; got {type(text).__name__}.")
    if shadow_of.get() is call.metadata:
        return
    if background_of.get() is call.metadata:
        raise HookUsageError(
            f"A hook with `wait=False` cannot add context to its {name}: nothing waits for it. Remove `wait=False`."
        )
    taker = context_takers.get(id(call.metadata))
    if taker is None:
        raise HookUsageError(
            f"{name}.add_context works only in a hook, while a run or a chain runs the call; this call is not running."
        )
    taker.take_context(text)


class AgentCall(Call, frozen=True, kw_only=True):
    """A run is about to start, or to continue with the input of a `Continue`.

    Attributes:
        input: The messages of the user; a string becomes one message.
        instructions: The agent's system message.
        tools: The tools that the model can call.
    """

    input: list[Message]
    instructions: str = ""
    tools: list[ToolSpec] = NO_LIST

    def __post_init__(self) -> None:
        given: object = self.input
        freeze_messages(self, "input", [Message(role="user", content=given)] if isinstance(given, str) else given)
        freeze_list(self, "tools", self.tools)

    def add_context(self, text: str) -> None:
        """Add a text that the model reads after the prompt, before its first call; all copies of the call share it.

        The text is marked as coming from the hook that adds it. A second call by the same hook replaces its text, and
        an empty text removes it. After the run, a text is part of the next input if a hook returns `Continue`;
        otherwise nobody reads it.

        Args:
            text: The text for the model.

        Raises:
            HookUsageError: If no chain is running the call, the hook has `wait=False`, or `text` is not a string.
        """
        _add_context(self, text)


class AgentResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run.

    Attributes:
        output: The agent's final answer.
        reason: Why the run ended, as in `OnComplete.reason`.
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
    """The result of a step.

    Attributes:
        should_continue: Whether another step follows.
        content: The model's text in the step.
    """

    should_continue: bool
    content: str = ""


class ModelCall(Call, frozen=True, kw_only=True):
    """A model is about to be called.

    Attributes:
        messages: The conversation, oldest first.
        tools: The tools that the model can call.
        model: The model's name.
        settings: Settings for the model's adapter, such as the temperature.
        step_index: The step, from 0.
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
    """The response of a model.

    Attributes:
        content: The text.
        tool_calls: The tool calls that the model requests.
        reasoning: The model's reasoning, if it returns any.
        usage: Tokens and cost of the call.
        finish_reason: Why the model stopped, as the provider reports it.
        model: The model that answered, as the provider reports it; `""` if unknown.
        response_id: The provider's id of the response.
        details: JSON that the model's adapter needs in later calls, such as signatures of the reasoning. It is private
            to the adapter.
        cost_known: Whether the cost in `usage` is known; if not, because the model has no known price, it is 0 there.
    """

    content: str = ""
    tool_calls: list[ToolRequest] = NO_LIST
    reasoning: str = ""
    usage: Usage = Usage()
    finish_reason: str = "stop"
    model: str = ""
    response_id: str = ""
    details: dict[str, Any] = NO_DICT
    cost_known: bool = True

    def __post_init__(self) -> None:
        calls = self.tool_calls
        if calls.__class__ is not ReadOnlyList and isinstance(calls, list):  # others are refused where they are used
            force_setattr(self, "tool_calls", ReadOnlyList(calls))
        if self.details.__class__ is not ReadOnlyDict:
            freeze_dict(self, "details", self.details)


class PartialResponse(ModelResponse, frozen=True, kw_only=True):
    """The beginning of an answer that the model is still writing, for an `after` hook that judges it in parts.

    `content` is the text so far, as the hooks inside of this one have left it. The finish reason is `"incremental"`, or
    `"truncated"` for the last part of a stream that broke, of which nothing more is released. Tool calls, reasoning and
    usage are known at the end only.

    Attributes:
        judged: Number of characters at the beginning of `content` that the hook has judged before.
    """

    judged: int = 0


class ToolCall(Call, frozen=True, kw_only=True):
    """A tool is about to be called.

    Attributes:
        toolset: Where the tool comes from.
        tool_name: The tool's name there.
        args: The arguments, read-only; `{}` if the model's text was not a JSON object.
        tool_call_id: The model's id of this call.
        call_index: The number of the call, from 1, per tool and operation.
        step_index: The step, from 0.
    """

    toolset: str = msgspec.field(default="local", name="identifier")
    tool_name: str = msgspec.field(name="api_name")
    args: dict[str, Any] = {}
    tool_call_id: str = ""
    call_index: int = 1
    step_index: int = 0

    def __post_init__(self) -> None:
        if self.args.__class__ is not ReadOnlyDict:
            freeze_dict(self, "args", self.args)

    def with_args(self, **changed: Any) -> "ToolCall":
        """Return the call with some arguments changed."""
        return msgspec.structs.replace(self, args={**self.args, **changed})

    def add_context(self, text: str) -> None:
        """Add a text that the model reads with the result of the call, also if it is denied; all copies share it.

        The text is marked as coming from the hook that adds it. It is kept while the call waits for a person, and if
        the hook fails afterwards. A second call by the same hook replaces its text, and an empty text removes it.

        Args:
            text: The text for the model.

        Raises:
            HookUsageError: If no chain is running the call, the hook has `wait=False`, or `text` is not a string.
        """
        _add_context(self, text)


class CompactCall(Call, frozen=True, kw_only=True):
    """The conversation is about to be compacted.

    Attributes:
        messages: The messages that the summary replaces.
        token_count: The input tokens that made the compaction necessary.
    """

    messages: list[Message]
    token_count: int

    def __post_init__(self) -> None:
        freeze_messages(self, "messages", self.messages)


class CompactResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a compaction.

    Attributes:
        summary: The text that replaces the removed messages.
    """

    summary: str


class SubAgentCall(Call, frozen=True, kw_only=True):
    """A sub-agent is about to be called. Its result is an `AgentResult`, whose `reason` says whether it succeeded.

    Attributes:
        callee_id: The sub-agent.
        instruction: The task for the sub-agent.
    """

    callee_id: str
    instruction: str


class RequestCall(Call, frozen=True, kw_only=True):
    """An HTTP request is about to be answered.

    Attributes:
        method: `"GET"`, `"POST"`, …
        path: The path, percent-decoded.
        headers: Headers by lower-case name; repeated ones are joined with `", "`.
    """

    method: str
    path: str
    headers: dict[str, str] = {}

    def __post_init__(self) -> None:
        freeze_dict(self, "headers", self.headers)


class RequestResult(msgspec.Struct, frozen=True, kw_only=True):
    """The response to an HTTP request.

    Attributes:
        status: The status code.
        headers: Headers by lower-case name. Changes are sent; a changed header replaces all headers of that name.
        body: The body of a hook's answer. It is always empty for responses of the application, which are never held
            back.
        duration_ms: Time from the request to the start of the response.
    """

    status: int
    headers: dict[str, str] = {}
    body: bytes = b""
    duration_ms: float = 0.0

    def __post_init__(self) -> None:
        freeze_dict(self, "headers", self.headers)


class MemoryCall(Call, frozen=True, kw_only=True):
    """A session's history is about to be written to memory, after a task.

    Attributes:
        key: The key: for a history, the id of the session.
        value: The value: for a history, the list of messages.
    """

    key: str
    value: Any

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "value", read_only_value(self.value))


class MemoryResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a write to memory.

    Attributes:
        stored: Whether the value was written.
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
    """Deny a call, or, from an `after` hook, withhold its result.

    Attributes:
        reason: Why. The model reads it if it requested the call.
        stop: Whether the denial of a tool or sub-agent call also ends the run.
    """

    reason: str
    stop: bool = False


class Respond(msgspec.Struct, frozen=True):
    """Answer a call, which then does not happen.

    Attributes:
        answer: The result, a string, a mapping of the result's fields, or an `Exception` that counts as raised by the
            call.
    """

    answer: Any


class Ask(msgspec.Struct, frozen=True):
    """Ask a person. A tool call waits for the decision; any other call is denied.

    Attributes:
        prompt: The question to the person.
    """

    prompt: str


class Continue(msgspec.Struct, frozen=True):
    """Continue a finished run with more input. Only `after(AgentCall)` hooks can return it.

    Attributes:
        input: The next user message; an empty one is ignored.
    """

    input: str


class Guide(msgspec.Struct, frozen=True):
    """Discard a model's answer and ask the model again. Only `after(ModelCall)` hooks can return it.

    The tool calls of the discarded answer do not run. A run asks again at most `Agent(max_guides=3)` times in a step;
    then the last answer stands.

    Attributes:
        feedback: What the model reads before it answers again, as a user message.
    """

    feedback: str


DECISIONS = (Deny, Ask, Respond, Continue, Guide, ToolResult)
"""What only interceptors may return: from an observer, a phase hook or a hook with `wait=False` it is an error."""


class Denial(msgspec.Struct, frozen=True, kw_only=True):
    """The denial of a call: the hook, and its reason.

    Attributes:
        hook_id: The hook that denied the call.
        reason: Why.
    """

    hook_id: str
    reason: str


GUIDES_LEFT = "hookline.guides_left"
"""The key of `ModelCall.metadata` for how often a `Guide` can still have the model asked again in the step.

It is there from the second asking on, and at once if it is 0. The answer then stands whatever `Guide` says; a hook that
must not let it stand returns `Deny`.
"""

HOOKS_KEY = "hookline.hooks"
"""The key of `Message.details` for the ids of the hooks that have added the message."""


def hook_message(hook_ids: list[str], content: str) -> Message:
    """Return a user message that hooks add to a conversation."""
    return Message(role="user", content=content, details={HOOKS_KEY: hook_ids})


def is_from_hooks(message: Message) -> bool:
    """Return whether hooks have added a message to the conversation."""
    return HOOKS_KEY in message.details


def is_from_user(message: Message) -> bool:
    """Return whether a message is the user's, and no hook has added it."""
    return message.role == "user" and not is_from_hooks(message)


def put_context(context: tuple[AddedContext, ...], added: AddedContext) -> tuple[AddedContext, ...]:
    """Return the texts of a call with one more; it replaces the one that the same hook has added before."""
    for at, known in enumerate(context):
        if (known.hook_id, known.nth) == (added.hook_id, added.nth):
            return (*context[:at], added, *context[at + 1 :])
    return (*context, added)


def merge_context(earlier: Iterable[AddedContext], later: Iterable[AddedContext]) -> tuple[AddedContext, ...]:
    """Return the texts of a call that went on at another time; later ones replace those of the same hooks."""
    merged = tuple(earlier)
    for added in later:
        merged = put_context(merged, added)
    return merged


def describe_context(context: Iterable[AddedContext]) -> str:
    """Return what the model reads of the texts that hooks have added, each marked with its hook."""
    return "\n\n".join(f"Context from hook {each.hook_id!r}: {each.text}" for each in context if each.text)


def context_message(context: Iterable[AddedContext]) -> Message | None:
    """Return the message with the texts that hooks have added to an `AgentCall`; `None` if there are none."""
    shown = [each for each in context if each.text]
    return hook_message([each.hook_id for each in shown], describe_context(shown)) if shown else None


def append_context(content: str, context: Iterable[AddedContext]) -> str:
    """Return a result for the model, with the texts that hooks have added to its call."""
    return join_texts(content, describe_context(context))


def join_texts(*texts: str | None) -> str:
    """Join texts for the model by a blank line; empty ones are left out."""
    return "\n\n".join(text for text in texts if text)
