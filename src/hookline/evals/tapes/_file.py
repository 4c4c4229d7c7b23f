"""Read and write the files of tapes: each message and each tool once, errors that name the line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from hookline._readonly import writable
from hookline._yaml import LinedDict, LinedList
from hookline.calls import ModelResponse, ToolRequest, Usage
from hookline.evals._equality import json_key
from hookline.evals.cassettes import (
    check_version,
    describe_value,
    digest_of,
    parse_document,
    read_bytes,
    to_json_value,
    write_cassette,
    write_yaml,
)
from hookline.evals.errors import CassetteFileError
from hookline.evals.tapes._calls import ModelQuestion, TapedCall

__all__ = ["TAPE", "TapeFile", "encode_tape", "read_replaceable_tape", "read_tape", "write_tape"]

VERSION = 1
"""The format's version, as `hookline_tape` says it."""

TAPE = "tape"

FILE_FIELDS = ("hookline_tape", "name", "tools", "calls")
CALL_FIELDS: dict[str, tuple[type, str]] = {
    "agent": (str, "text"),
    "model": (str, "text"),
    "settings": (dict, "a mapping"),
    "tools": (list, "a list"),
    "continues": (int, "the number of an earlier call, from 1"),
    "messages": (list, "a list"),
    "answer": (dict, "a mapping"),
}
REQUIRED = ("model", "messages", "answer")


class TapeFile(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a tape's file when it was read.

    Attributes:
        name: The tape's name.
        calls: Its calls.
        digest: A hash of the file's bytes; `None` if there was no file.
    """

    name: str | None = None
    calls: list[TapedCall] = []
    digest: str | None = None


class _WireTool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tool: str
    description: str
    schema: dict[str, Any]
    id: str = ""


class _WireToolCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tool: str
    args: dict[str, Any] | str
    id: str


class _WireMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    role: str
    content: str
    tool_calls: list[_WireToolCall] = []
    tool_call_id: str | None = None


class _WireUsage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    input_tokens: int
    output_tokens: int
    cost_usd: float | None


class _WireAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    # The usage comes last in what is written, so that an answer that was cut off lacks it.
    content: str
    usage: _WireUsage
    reasoning: str = ""
    tool_calls: list[_WireToolCall] = []
    finish_reason: str = "stop"
    model: str = ""
    response_id: str = ""
    details: dict[str, Any] = {}


def encode_tape(name: str, calls: Sequence[TapedCall]) -> bytes:
    """Encode a tape as the bytes of its file. Equal calls in the same order give equal bytes.

    A call that goes on from an earlier one has only the messages that are new, and tools that are not the same.
    """
    ids = _name_tools(calls)
    document: dict[str, Any] = {"hookline_tape": VERSION, "name": name}
    if ids:
        document["tools"] = [
            {**tool, "id": id} if id != tool["tool"] else dict(tool)
            for tool, id in ids.values()  # noqa: A001
        ]
    document["calls"] = [_fields(position, calls, ids) for position in range(len(calls))]
    return write_yaml(document).encode()


def _name_tools(calls: Iterable[TapedCall]) -> dict[str, tuple[dict[str, Any], str]]:
    """Return each tool that is offered, with its name in the file: its path, numbered if its schema differs."""
    found: dict[str, tuple[dict[str, Any], str]] = {}
    counts = Counter[str]()
    for call in calls:
        for tool in call.question.tools:
            key = json_key(tool)
            if key not in found:
                path = tool["tool"]
                counts[path] += 1
                found[key] = tool, path if counts[path] == 1 else f"{path} #{counts[path]}"
    return found


def _fields(position: int, calls: Sequence[TapedCall], ids: dict[str, tuple[dict[str, Any], str]]) -> dict[str, Any]:
    call = calls[position]
    question = call.question
    fields: dict[str, Any] = {"agent": call.agent} if call.agent else {}
    fields["model"] = question.model
    if question.settings:
        fields["settings"] = question.settings
    before = _find_beginning(question, calls[:position])
    earlier = None if before is None else calls[before].question
    if earlier is None or earlier.tools != question.tools:
        fields["tools"] = [ids[json_key(tool)][1] for tool in question.tools]
    if before is not None and earlier is not None:
        fields["continues"] = before + 1
        fields["messages"] = question.messages[len(earlier.messages) :]
    else:
        fields["messages"] = question.messages
    fields["answer"] = _answer_fields(call.answer)
    return fields


def _find_beginning(question: ModelQuestion, earlier: Sequence[TapedCall]) -> int | None:
    """Return the latest call whose messages are the beginning of those of a question, with as many as possible."""
    best: int | None = None
    for position, call in enumerate(earlier):
        messages = call.question.messages
        begins = 0 < len(messages) <= len(question.messages) and messages == question.messages[: len(messages)]
        if begins and (best is None or len(messages) >= len(earlier[best].question.messages)):
            best = position
    return best


def _answer_fields(answer: ModelResponse) -> dict[str, Any]:
    fields: dict[str, Any] = {"content": answer.content}
    if answer.reasoning:
        fields["reasoning"] = answer.reasoning
    if answer.tool_calls:
        fields["tool_calls"] = [
            {
                "tool": f"{call.toolset}/{call.tool_name}",
                "args": call.args if isinstance(call.args, str) else to_json_value(writable(call.args)),
                "id": call.tool_call_id,
            }
            for call in answer.tool_calls
        ]
    fields |= {"finish_reason": answer.finish_reason}
    fields |= {name: value for name in ("model", "response_id") if (value := getattr(answer, name))}
    if answer.details:
        fields["details"] = to_json_value(writable(answer.details))
    usage = answer.usage
    fields["usage"] = {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cost_usd": usage.cost_usd if answer.cost_known else None,
    }
    return fields


def read_tape(path: Path) -> TapeFile:
    """Read a tape's file. If there is no file, the result is empty and has no digest.

    Raises:
        CassetteFileError: If it is not a tape, or is incomplete. The error names the line and the fix.
        CassetteVersionError: If it has another format version.
        MissingExtraError: If PyYAML is not installed.
    """
    data = read_bytes(path, what=TAPE)
    if data is None:
        return TapeFile()
    return _parse_tape(str(path), parse_document(str(path), data, what=TAPE), digest_of(data))


def read_replaceable_tape(path: Path) -> TapeFile:
    """Read a file that is to be replaced as a whole: a tape of any version, or no file at all.

    Raises:
        CassetteFileError: If the file is something else.
        MissingExtraError: If PyYAML is not installed.
    """
    data = read_bytes(path, what=TAPE)
    if data is None:
        return TapeFile()
    parse_document(str(path), data, what=TAPE)
    return TapeFile(digest=digest_of(data))


def write_tape(path: Path, data: bytes, *, before: str | None, name: str) -> str:
    """Replace a tape's file, if nobody has changed it since it was read, and return the digest of what it holds now.

    Raises:
        CassetteConflictError: If another process has written it. Nothing is overwritten.
        CassetteWriteError: If it cannot be written.
    """
    return write_cassette(path, data, before=before, name=name, what=TAPE)


def _parse_tape(path: str, document: LinedDict, digest: str) -> TapeFile:
    def wrong(problem: str, line: int) -> NoReturn:
        raise CassetteFileError(path, problem, line, TAPE)

    check_version(path, document, VERSION, what=TAPE)
    for field in document:
        if field not in FILE_FIELDS:
            known = ", ".join(f"`{each}`" for each in FILE_FIELDS)
            wrong(f"`{field:.100}` is not a field of a tape, which has {known}", document.lines[field])
    calls = document.get("calls")
    if "calls" not in document:
        wrong("it has no `calls`; write `calls: []` for none", document.line)
    if not isinstance(calls, LinedList):
        wrong(f"`calls` is a list; got {describe_value(calls)}", document.lines["calls"])
    name, tools = document.get("name"), document.get("tools", LinedList(document.line))
    if not isinstance(name, str | None):
        wrong(f"`name` is text; got {describe_value(name)}. Put it in quotes", document.lines["name"])
    if not isinstance(tools, LinedList):
        wrong(f"`tools` is a list; got {describe_value(tools)}", document.lines["tools"])
    reader = _CallReader(_parse_tools(tools, wrong), wrong)
    for call, line in zip(calls, calls.lines, strict=True):
        reader.read(call, line)
    return TapeFile(name=name, calls=reader.calls, digest=digest)


Wrong = Callable[[str, int], NoReturn]


def _parse_tools(tools: LinedList, wrong: Wrong) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for entry, line in zip(tools, tools.lines, strict=True):
        tool = _convert(entry, _WireTool, "a tool", line, wrong)
        name = tool.id or tool.tool
        if name in found:
            wrong(f"the tool {name!r} is there twice; give one of them another `id`", line)
        found[name] = {"tool": tool.tool, "description": tool.description, "schema": _plain(tool.schema)}
    return found


class _CallReader:
    """Reads the calls of a file, each of which may go on from an earlier one."""

    def __init__(self, tools: dict[str, dict[str, Any]], wrong: Wrong) -> None:
        self.calls: list[TapedCall] = []
        self._tools, self._wrong = tools, wrong
        self._counts = Counter[str]()

    def read(self, call: Any, line: int) -> None:
        """Read one call."""
        if not isinstance(call, LinedDict):
            self._wrong(f"a call is a mapping with {', '.join(REQUIRED)}; got {describe_value(call)}", line)
        for field, value in call.items():
            kind = CALL_FIELDS.get(field)
            if kind is None:
                known = ", ".join(CALL_FIELDS)
                self._wrong(f"`{field:.100}` is not a field of a call, which has {known}", call.lines[field])
            if not isinstance(value, kind[0]) or isinstance(value, bool):
                hint = ". Put it in quotes" if kind[0] is str and isinstance(value, int | float) else ""
                self._wrong(f"`{field}` is {kind[1]}; got {describe_value(value)}{hint}", call.lines[field])
        missing = [field for field in REQUIRED if field not in call]
        if missing:
            self._wrong(f"this call has no {' and no '.join(f'`{field}`' for field in missing)}", line)
        question = self._question(call)
        self._counts[question.key] += 1
        self.calls.append(
            TapedCall(
                question=question,
                answer=self._answer(call),
                agent=call.get("agent", ""),
                call_index=self._counts[question.key],
            )
        )

    def _question(self, call: LinedDict) -> ModelQuestion:
        earlier: ModelQuestion | None = None
        if "continues" in call:
            number = call["continues"]
            if not 1 <= number <= len(self.calls):
                problem = f"`continues` is the number of an earlier call, from 1 to {len(self.calls)}; got {number}"
                self._wrong(problem, call.lines["continues"])
            earlier = self.calls[number - 1].question
        if "tools" in call:
            tools = [self._tool(name, call.lines["tools"]) for name in call["tools"]]
        else:
            tools = [] if earlier is None else earlier.tools
        line = call.lines["messages"]
        messages = [_convert(each, _WireMessage, "a message", line, self._wrong) for each in call["messages"]]
        return ModelQuestion(
            model=call["model"],
            settings=_plain(call.get("settings", {})),
            tools=tools,
            messages=[
                *(() if earlier is None else earlier.messages),
                *(_plain(msgspec.to_builtins(message)) for message in messages),
            ],
        )

    def _tool(self, name: object, line: int) -> dict[str, Any]:
        if not isinstance(name, str) or name not in self._tools:
            self._wrong(f"the tool {name!r:.100} is not among the `tools` of the file", line)
        return self._tools[name]

    def _answer(self, call: LinedDict) -> ModelResponse:
        answer = _convert(call["answer"], _WireAnswer, "an answer", call.lines["answer"], self._wrong)
        return ModelResponse(
            content=answer.content,
            reasoning=answer.reasoning,
            tool_calls=[_to_request(each) for each in answer.tool_calls],
            usage=Usage(
                input_tokens=answer.usage.input_tokens,
                output_tokens=answer.usage.output_tokens,
                cost_usd=answer.usage.cost_usd or 0.0,
            ),
            cost_known=answer.usage.cost_usd is not None,
            finish_reason=answer.finish_reason,
            model=answer.model,
            response_id=answer.response_id,
            details=_plain(answer.details),
        )


def _to_request(call: _WireToolCall) -> ToolRequest:
    toolset, _, name = call.tool.rpartition("/")
    return ToolRequest(toolset=toolset, tool_name=name, args=call.args, tool_call_id=call.id)


def _plain(value: Any) -> Any:
    return to_json_value(value)


def _convert(value: Any, kind: type[Any], what: str, line: int, wrong: Wrong) -> Any:
    try:
        return msgspec.convert(value, kind, strict=True)
    except msgspec.ValidationError as error:
        wrong(f"{what} cannot be read: {error}", line)
