"""Convert a client's JSON to hookline's messages and back: conversations, tools, answers and streams."""

from __future__ import annotations

import abc
import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, cast

import msgspec

from hookline._readonly import writable
from hookline.calls import Message, ModelCall, ModelResponse, ToolRequest, ToolSpec, Usage
from hookline.loop._names import ToolNames

__all__ = [
    "Format",
    "Group",
    "Price",
    "RequestParts",
    "Told",
    "arguments",
    "encode_events",
    "fields",
    "get",
    "given",
    "plain",
    "read_events",
    "text_of",
    "to_usage",
]

Price: TypeAlias = Callable[[Mapping[str, int], str], float | None]
"""Returns the cost of an answer in US dollars; `None` if it is not known.

It takes the tokens, by the names that `genai_prices` uses, and the name of the model that answered.
"""


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one tool call, for the model.

    Attributes:
        call: The client's own object or JSON of the call.
        content: The text.
        success: Whether the tool succeeded.
    """

    call: Any
    content: str
    success: bool = True


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of a client's conversation with the messages that hooks see of it.

    Attributes:
        theirs: The entry.
        ours: The messages; none if hooks do not see the entry.
        place: The parameter that holds the entry, if it is not the list of messages.
    """

    theirs: Any
    ours: list[Message]
    place: str = ""


class RequestParts(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a request that hooks see.

    Attributes:
        groups: The entries of the conversation.
        messages: Their messages.
        tools: The tools that the request offers.
        settings: Its other parameters.
        model: The name of the model.
    """

    groups: list[Group]
    messages: list[Message]
    tools: list[ToolSpec]
    settings: dict[str, Any]
    model: str


class Format(abc.ABC):
    """One of the protocols that the clients speak.

    Attributes:
        name: The name of the protocol; stored conversations contain it.
        path: The path of its model calls.
        conversation: The parameter that holds the messages.
        last_event: Matches the line of a stream with which the provider ends the answer.
    """

    name: str
    path: str
    conversation: str
    last_event: bytes

    # Requests.

    @abc.abstractmethod
    def read_conversation(self, body: Mapping[str, Any], names: ToolNames) -> list[Group]:
        """Return the entries of a request's conversation, each with the messages that hooks see of it."""

    @abc.abstractmethod
    def write_message(self, message: Message, names: ToolNames) -> Any:
        """Return the entry for a message that a hook wrote."""

    @abc.abstractmethod
    def read_tool(self, tool: Any, names: ToolNames) -> ToolSpec | None:
        """Return a tool that a request offers; `None` for a tool that the provider runs itself."""

    @abc.abstractmethod
    def write_tool(self, spec: ToolSpec, names: ToolNames) -> dict[str, Any]:
        """Return a tool as a request offers it."""

    def read_tools(self, body: Mapping[str, Any], names: ToolNames) -> list[ToolSpec]:
        """Return the tools that a request offers."""
        found = (self.read_tool(tool, names) for tool in given(body.get("tools")) or ())
        return [spec for spec in found if spec is not None]

    def read_settings(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters of a request that are neither conversation, nor tools, nor the model."""
        left_out = {self.conversation, "tools", "model", "system", "instructions", "stream"}
        return {name: plain(value) for name, value in body.items() if name not in left_out and given(value) is not None}

    def apply(self, body: Mapping[str, Any], given_call: RequestParts, call: ModelCall, names: ToolNames) -> Any:
        """Apply the changes of hooks to a request; unchanged parts stay the client's own JSON.

        Args:
            body: The request.
            given_call: The call before the hooks.
            call: The call after the hooks.
            names: The names of the tools.
        """
        changed = dict(body)
        if call.messages != given_call.messages:
            entries = _restore(call.messages, given_call.groups, lambda each: self.write_message(each, names))
            self.put_conversation(changed, entries)
        if call.tools != given_call.tools:
            own = [(self.read_tool(each, names), each) for each in given(body.get("tools")) or ()]
            kept = [each for spec, each in own if spec is None]
            offered = [
                next((each for known, each in own if known == spec), None) or self.write_tool(spec, names)
                for spec in call.tools
            ]
            changed["tools"] = [*offered, *kept]
            if not changed["tools"]:
                del changed["tools"]
        if call.settings != given_call.settings:
            for name in given_call.settings.keys() - call.settings.keys():
                del changed[name]
            for name, value in call.settings.items():
                if name not in given_call.settings or given_call.settings[name] != value:
                    changed[name] = writable(value)
        if call.model != given_call.model:
            changed["model"] = call.model
        return changed

    def read_parts(self, body: Mapping[str, Any], names: ToolNames) -> RequestParts:
        """Return the parts of a request that hooks see."""
        groups = self.read_conversation(body, names)
        return RequestParts(
            groups=groups,
            messages=[message for group in groups for message in group.ours],
            tools=self.read_tools(body, names),
            settings=self.read_settings(body),
            model=str(given(body.get("model")) or ""),
        )

    def put_conversation(self, body: dict[str, Any], entries: Sequence[Group]) -> None:
        """Replace the conversation of a request."""
        body[self.conversation] = [each.theirs for each in entries]

    def restore(self, messages: Sequence[Message], groups: Sequence[Group], names: ToolNames) -> list[Any]:
        """Return the entries for messages that hooks may have changed."""
        body: dict[str, Any] = {}
        self.put_conversation(body, _restore(messages, groups, lambda each: self.write_message(each, names)))
        entries: list[Any] = body[self.conversation]
        return entries

    def list_entries(self, body: Mapping[str, Any]) -> list[Any]:
        """Return the entries of a request's conversation."""
        return list(given(body.get(self.conversation)) or ())

    # Answers.

    @abc.abstractmethod
    def wrote(self, answer: object) -> bool:
        """Return whether an object is an answer of this protocol."""

    @abc.abstractmethod
    def read_answer(self, answer: Any, names: ToolNames, price: Price) -> ModelResponse:
        """Convert an answer to the response that hooks see.

        Args:
            answer: The answer, as an object of the client or as JSON.
            names: The names of the tools.
            price: Returns the cost of the answer.
        """

    @abc.abstractmethod
    def read_calls(self, answer: Any) -> list[Any]:
        """Return the tool calls of an answer in the client's own form, in the model's order."""

    @abc.abstractmethod
    def read_call(self, call: Any, names: ToolNames) -> ToolRequest:
        """Convert a tool call to the one that hooks see."""

    @abc.abstractmethod
    def write_answer(
        self, answer: ModelResponse, own: Mapping[str, Any] | None, model: str, names: ToolNames
    ) -> dict[str, Any]:
        """Convert an answer that hooks provided or changed to the client's JSON.

        Args:
            answer: The answer.
            own: The JSON of the provider's own answer, if there is one.
            model: The name of the model.
            names: The names of the tools.
        """

    @abc.abstractmethod
    def write_events(self, answer: Mapping[str, Any], body: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """Yield the events of a stream with this answer, each with its name."""

    @abc.abstractmethod
    def join_events(self, events: Iterable[tuple[str, Any]]) -> dict[str, Any] | None:
        """Return the JSON of the answer in a stream, as far as it was received; `None` if nothing was."""

    @abc.abstractmethod
    def read_text(self, data: Mapping[str, Any]) -> tuple[object, str] | None:
        """Return the text of an event of a stream that is nothing but text, after its place in the answer."""

    @abc.abstractmethod
    def with_text(self, data: Mapping[str, Any], text: str) -> dict[str, Any]:
        """Return such an event with other text."""

    @abc.abstractmethod
    def is_frame(self, data: Mapping[str, Any]) -> bool:
        """Return whether an event of a stream comes before text and has no content of the model."""

    @abc.abstractmethod
    def write_entries(self, answer: Any) -> list[Any]:
        """Return the entries that an answer adds to a conversation."""

    @abc.abstractmethod
    def join_entries(self, entries: Sequence[Any]) -> dict[str, Any]:
        """Rebuild an answer, with its tool calls, from the entries that `write_entries` returned."""

    @abc.abstractmethod
    def write_result(self, told: Told) -> dict[str, Any]:
        """Return the entry with the result of one tool call."""

    def write_results(self, told: Sequence[Told]) -> list[Any]:
        """Return the entries with the results of tool calls."""
        return [self.write_result(each) for each in told]


def to_usage(tokens: Mapping[str, int], cost: float | None) -> Usage:
    """Return the usage that hooks see; a cost that is not known counts as 0."""
    return Usage(
        input_tokens=tokens.get("input_tokens", 0), output_tokens=tokens.get("output_tokens", 0), cost_usd=cost or 0.0
    )


def get(value: Any, name: str, default: Any = None) -> Any:
    """Return a field of an object of a client or of its JSON; the default also where it is null."""
    found = fields(value).get(name)
    return default if found is None else found


def fields(value: Any) -> Mapping[str, Any]:
    """Return the fields of an object of a client, or of its JSON; no fields for any other value.

    An attribute that an object of Pydantic lacks takes ten times as long as a field that a dictionary lacks.
    """
    if _has_keys(value.__class__):
        return cast(Mapping[str, Any], value)
    try:
        own: Mapping[str, Any] = value.__dict__
        extra = value.__pydantic_extra__ if own else None
    except AttributeError:
        return getattr(value, "__dict__", _NOTHING)
    return {**own, **extra} if extra else own


_NOTHING: Mapping[str, Any] = {}


@functools.cache
def _has_keys(kind: type) -> bool:
    """Return whether a class is a mapping; kept, because asking an abstract class takes several times as long."""
    return issubclass(kind, Mapping)


def given(value: Any) -> Any:
    """Return a parameter; `None` if its value is the client's marker for an omitted parameter."""
    return None if type(value).__name__ in ("NotGiven", "Omit") else value


def plain(value: Any) -> Any:
    """Return a copy of a client's value as JSON, with its objects converted."""
    if isinstance(value, str | int | float | bool | None):
        return value
    if isinstance(value, Mapping):
        return {key: plain(each) for key, each in value.items() if given(each) is not None or each is None}
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        return dump(mode="json", by_alias=True, exclude_unset=True, warnings=False)
    if isinstance(value, Iterable):
        return [plain(each) for each in value]
    return str(value)


def arguments(text: Any) -> dict[str, Any] | str:
    """Return a call's arguments as a JSON object; the model's text if they are not one."""
    if not isinstance(text, str):
        if isinstance(text, Mapping):
            return dict(text)
        return {} if text is None else str(text)
    if not text.strip():
        return {}
    try:
        parsed = msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return text
    return parsed if isinstance(parsed, dict) else text


def read_events(data: bytes) -> Iterator[tuple[str, Any]]:
    """Yield the events of a stream, each with its name; an incomplete last event is left out."""
    *blocks, _ = data.decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n").split("\n\n")
    for block in blocks:
        name, parts = "", list[str]()
        for line in block.split("\n"):
            field, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if field == "event":
                name = value
            elif field == "data":
                parts.append(value)
        text = "\n".join(parts)
        if not text or text.startswith("[DONE]"):
            continue
        try:
            yield name, msgspec.json.decode(text)
        except (ValueError, RecursionError):
            continue


def encode_events(events: Iterable[tuple[str, Any]]) -> bytes:
    """Return the events of a stream as a provider sends them."""
    parts = []
    for name, data in events:
        head = f"event: {name}\n" if name else ""
        parts.append(f"{head}data: {data if isinstance(data, str) else json.dumps(data)}\n\n")
    return "".join(parts).encode()


def _restore(messages: Sequence[Message], groups: Sequence[Group], convert: Any) -> list[Group]:
    """Return the entries for messages that hooks may have changed; unchanged ones stay the client's own entries."""
    found: list[Group] = []
    left = list(groups)
    at = 0
    while at < len(messages):
        nearest = next(
            (
                index
                for index, each in enumerate(left)
                if each.ours and list(messages[at : at + len(each.ours)]) == each.ours
            ),
            None,
        )
        if nearest is None:
            found.append(Group(theirs=convert(messages[at]), ours=[messages[at]]))
            at += 1
            continue
        # Entries of which hooks see nothing, such as reasoning, stay before the entry that they came before.
        first = nearest
        while first > 0 and not left[first - 1].ours:
            first -= 1
        found += left[first : nearest + 1]
        at += len(left[nearest].ours)
        del left[first : nearest + 1]
    found += [each for each in left if not each.ours and each is groups[-1]]
    return found


def text_of(content: Any) -> str:
    """Return the text of a message, whose content may be a list of parts."""
    if isinstance(content, str):
        return content
    if content is None or not isinstance(content, Iterable):
        return ""
    found = (part if isinstance(part, str) else get(part, "text") or get(part, "refusal") for part in content)
    return "\n".join(text if isinstance(text, str) else "" for text in found)
