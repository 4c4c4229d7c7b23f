"""Cassettes: recordings of tool calls that answer the same calls again, without the tools."""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self, get_args

import msgspec

from hookline.calls import ToolResult, ToolSpec
from hookline.errors import HookUsageError, message_of
from hookline.evals._canonical import canonical
from hookline.evals._endings import OperationEndings
from hookline.evals._recorded_answers import ReplayScope, ReplayScopes
from hookline.evals.cassettes._file import (
    CassetteFile,
    check_needs,
    encode_cassette,
    read_cassette,
    read_replaceable,
    write_cassette,
)
from hookline.evals.cassettes._recorded_calls import (
    Matching,
    RecordedCall,
    RecordedCalls,
    explain_miss,
    recording_of,
    sort_for_file,
    to_json_value,
)
from hookline.evals.cassettes._tools import PresentTools, RecordedTool, ToolWatchingHooks, schema_changes
from hookline.evals.errors import (
    CassetteConflictError,
    CassetteError,
    CassetteFileError,
    CassetteVersionError,
    CassetteWriteError,
)
from hookline.events import (
    AfterToolCall,
    BeforeToolCall,
    Event,
    OnComplete,
    OnToolCallError,
    is_interrupted,
    is_settled,
)
from hookline.hooks import Hooks
from hookline.redaction import SECRET_KEYS, SECRET_PATTERNS, Redacting, Redaction, as_redaction

__all__ = [
    "SECRET_KEYS",
    "SECRET_PATTERNS",
    "Cassette",
    "CassetteConflictError",
    "CassetteError",
    "CassetteFileError",
    "CassetteVersionError",
    "CassetteWriteError",
    "ChangedTools",
    "Matching",
    "RecordMode",
    "RecordedCall",
    "Redaction",
]

RecordMode = Literal["none", "once", "new_episodes", "all", "rewrite"]
"""When a cassette replays and when it records; see `Cassette`."""

ChangedTools = Literal["warn", "refuse"]
"""What a replay does with recordings of a tool whose schema has changed since."""

DEFAULT_REDACTION: Final = Redaction()


class Cassette:
    """Records what tools answer in one run, and answers in their place in another.

    A call is found again by its tool, its arguments (whatever the order of their keys) and how often the operation
    has made that very call before. Each operation, and each sub-agent of it, is counted for itself. Use one cassette
    per case. Secrets are replaced before anything is kept.

    With each tool's recordings, the file keeps a digest of the tool's schema, its version and the date. A replay
    notices that a schema has changed: each answer from such recordings has `metadata["stale"]`, a sentence that names
    the tool and the change.

    With `with Cassette(path=...) as cassette:` it is saved on leaving, also after a failure.

    Args:
        name: The name in the metadata of every call that the cassette answers. By default that of the file.
        path: The file; `None` for a cassette that lives in memory. It is read at once.
        mode: The record mode of `hooks()`. `"none"`: replay, never record. `"once"`: like `"none"` if the file exists,
            else like `"new_episodes"`. `"new_episodes"`: replay known calls, record the others. `"all"`: never replay;
            new recordings replace, call by call, the old ones, and calls that are not made again stay. `"rewrite"`:
            like `"new_episodes"`, but start empty.
        matching: `"keyed"`: by tool and arguments. `"sequential"`: per tool in order, whatever the arguments. That of
            the file unless given, else `"keyed"`.
        ignore: Fields of the arguments that make no difference, from the outside in: `("request.id", "items.*.id")`.
        redact: The redaction of recordings: a `Redaction`, `None` for none, or a function that takes further secrets
            out of a text.
        changed_tools: What happens to a call of a tool whose schema has changed since it was recorded. `"warn"`: the
            recording answers, and `stale` says so. `"refuse"`: the call is answered with a failed result, as one that
            was not recorded; in a mode that records it is still a warning.
        conversation: Whether all operations are turns of one conversation, which is counted as one. Each call of
            `hooks`, `recorder` or `player` begins another conversation.
        allow_repeats: Whether a call that is made more often than it was recorded gets the last answer again, as when
            an agent polls. By default it is a call that was not recorded.

    Attributes:
        name: The cassette's name.
        path: The file.
        mode: The record mode of `hooks()`.
        misses: The message for every call that no recording answered and that could not be recorded.
        stale: By tool, how its schema has changed since its recordings were made, for the tools that were called.

    Raises:
        CassetteError: If the file cannot be used as a cassette.
        HookUsageError: If an argument is invalid.
        MissingExtraError: If `path` is given and PyYAML or filelock is not installed.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        path: str | os.PathLike[str] | None = None,
        mode: RecordMode = "once",
        matching: Matching | None = None,
        ignore: Sequence[str] = (),
        redact: Redacting | Callable[[str], str] | None = DEFAULT_REDACTION,
        changed_tools: ChangedTools = "warn",
        conversation: bool = False,
        allow_repeats: bool = False,
    ) -> None:
        _check(name, mode, matching, ignore, changed_tools)
        self._conversation = conversation
        self.path = None if path is None else Path(path)
        self.mode: RecordMode = mode
        self.misses: list[str] = []
        self.stale: dict[str, str] = {}
        self._refuses_changed = changed_tools == "refuse"
        self._present = PresentTools()
        self._redaction = as_redaction(redact)
        self._saved = self._read()
        self._exists = self._saved.digest is not None
        self.name = name or self._saved.name or (self.path.stem if self.path else "cassette")
        self._recordings = RecordedCalls(
            matching or self._saved.matching or "keyed", ignore, allow_repeats=allow_repeats
        )
        self._saved_tools = {tool.key: tool for tool in self._saved.tools}
        if mode != "rewrite":
            for recording in self._saved.recordings:
                key = self._recordings.key(recording.agent, recording.tool, self._redaction.value(recording.args))
                self._recordings.add(key, recording)
        self._scopes = ReplayScopes(conversation=conversation)
        self._endings = OperationEndings(self.forget)
        self._used = self._dirty = False

    @classmethod
    def load(cls, path: str | os.PathLike[str], name: str | None = None, **options: Any) -> Self:
        """Load a cassette from a file that must exist.

        Args:
            path: The file.
            name: The cassette's name; by default that of the file.
            **options: As for `Cassette`.

        Raises:
            CassetteError: If there is no such file, or if it cannot be used as a cassette.
        """
        if not os.path.exists(path):
            raise CassetteFileError(str(path), "there is no such file; record it first")
        return cls(name, path=path, **options)

    @classmethod
    def of_events(cls, name: str, events: Iterable[Event], **options: Any) -> Self:
        """Make a cassette of what the tools answered in a recorded run.

        Args:
            name: The cassette's name.
            events: The run's events, as an `EventRecorder` keeps them and `read_events` reads them.
            **options: As for `Cassette`.
        """
        cassette = cls(name, **options)
        for event in events:
            if isinstance(event, AfterToolCall | OnToolCallError):
                cassette._keep(event, replace=True)
        cassette._scopes = ReplayScopes(conversation=cassette._conversation)
        return cassette

    def __len__(self) -> int:
        return len(self._recordings)

    def __repr__(self) -> str:
        return f"Cassette({self.name!r}, recordings={len(self)})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.save()
        except CassetteError as unsaved:
            if error is None:
                raise
            error.add_note(str(unsaved))  # the first error stays the one that is raised

    @property
    def matching(self) -> Matching:
        """The way in which recordings are found: by tool and arguments, or per tool in order."""
        return self._recordings.matching

    @property
    def records(self) -> bool:
        """Whether `hooks()` may record."""
        return self.mode != "none" and not (self.mode == "once" and self._exists)

    @property
    def recordings(self) -> list[RecordedCall]:
        """The recordings, in the order of the file."""
        return sort_for_file(self._recordings)

    @property
    def tools(self) -> list[RecordedTool]:
        """The tools of the recordings, as they were when these were made. A tool of unknown schema is not among them.

        What is said of a tool holds for all of its recordings: it is replaced once all of them are made anew.
        """
        by_tool: dict[tuple[str, str], list[RecordedCall]] = {}
        for recording in self.recordings:
            by_tool.setdefault((recording.agent, recording.tool), []).append(recording)
        found = [self._describe_tool(key, recordings) for key, recordings in sorted(by_tool.items())]
        return [tool for tool in found if tool is not None]

    @property
    def attached(self) -> bool:
        """Whether an operation with this cassette has called a tool or ended."""
        return self._used or self._endings.used

    @property
    def changed(self) -> bool:
        """Whether there is something to save: recordings, or tools, other than those of the file."""
        touched = self._dirty or (self._used and self.mode == "rewrite")
        if not touched:
            return False
        return self.recordings != sort_for_file(self._saved.recordings) or self.tools != self._saved.tools

    def unused(self) -> list[str]:
        """List the recordings that answered no call and were not made in this run, one line each."""
        played = self._recordings.played
        return [str(recording) for recording in self.recordings if id(recording) not in played]

    # Hooks to attach to a run.

    def hooks(self) -> Hooks:
        """Return hooks that answer and record as the mode says, in sub-agents too. Attach these in tests."""
        return self._bundle(self._watching(self.name, inherit=True), self.answer, self.keep)

    def recorder(self) -> Hooks:
        """Return hooks that record every call that a tool answered or raised in, whatever the mode.

        Calls that a hook answered or refused are left out. A run replaces, call by call, what earlier ones recorded.
        """
        return self._bundle(self._watching(f"{self.name}.recorder"), None, partial(self._keep, replace=True))

    def player(self) -> Hooks:
        """Return hooks that answer every call from the recordings, whatever the mode.

        A call that was not recorded is answered too, with a failed result that says so: while these hooks are
        attached no real tool runs. `metadata["recording"]` names the recording that answered, `None` for a miss.
        """
        return self._bundle(self._watching(f"{self.name}.player"), partial(self._answer, may_run=False), None)

    def _watching(self, id: str, *, inherit: bool = False) -> Hooks:  # noqa: A002
        return ToolWatchingHooks(id, watcher=self._present.note, inherit=inherit)

    def _bundle(
        self,
        bundle: Hooks,
        find: Callable[[BeforeToolCall], ToolResult | None] | None,
        keep: Callable[[AfterToolCall | OnToolCallError], None] | None,
    ) -> Hooks:
        if self._conversation:
            self._scopes = ReplayScopes(conversation=True)
        if find is not None:

            @bundle.on(BeforeToolCall)
            def answer(event: BeforeToolCall) -> None:
                if is_settled(event):
                    return
                self._endings.attend(event)
                found = find(event)
                if found is not None:
                    event.mock(found)

        if keep is not None:

            @bundle.on(AfterToolCall)
            def answered(event: AfterToolCall) -> None:
                self._endings.attend(event)
                keep(event)

            @bundle.on(OnToolCallError)
            def raised(event: OnToolCallError) -> None:
                self._endings.attend(event)
                keep(event)

        bundle.on(OnComplete, id=f"{bundle.id}.forget")(self._endings.completed)
        return bundle

    # The same for callers that have the events themselves.

    def answer(self, event: BeforeToolCall) -> ToolResult | None:
        """Answer a call as the mode says.

        Args:
            event: The call about to happen. Say `forget` when its operation has ended.

        Returns:
            The recorded result. Where there is none: `None` if the real tool may run and be recorded, else a failed
            result that names the nearest recording.
        """
        if self.mode == "all":
            return None
        return self._answer(event, may_run=self.records)

    def keep(self, event: AfterToolCall | OnToolCallError) -> None:
        """Record the answer of a real tool, if the mode allows it.

        Args:
            event: The call's result. Calls that a hook answered or refused, or that were interrupted, are left out.
        """
        if self.records:
            self._keep(event, replace=self.mode == "all")

    def note_tools(self, tools: Iterable[ToolSpec], *, agent: str = "") -> None:
        """Note the tools of a run, whose schemas are kept with recordings and compared with those of earlier ones.

        The hooks of the cassette do this by themselves.

        Args:
            tools: The tools that the agent is offered.
            agent: The sub-agent; empty for the main agent.
        """
        self._present.note(list(tools), agent)

    def recording_of(self, event: AfterToolCall | OnToolCallError) -> RecordedCall:
        """Return what would be recorded of a call, without recording it.

        Args:
            event: The call's result.
        """
        return recording_of(event, ReplayScope("", 0), self._redaction)

    def is_redacted(self, recording: RecordedCall) -> bool:
        """Whether the arguments of a recording have the text that replaces secrets, so that no tool can be given them.

        A redaction of your own is known by its attribute `replacement`.
        """
        replacement = getattr(self._redaction, "replacement", "")
        return bool(replacement) and canonical(replacement)[1:-1] in canonical(recording.args)

    def forget(self, operation_id: str) -> None:
        """Drop the state of an operation that has ended: which recordings it and its sub-agents have used."""
        self._scopes.forget(operation_id)
        self._used = True

    def save(self, *, empty: bool = False) -> Path | None:
        """Write the file if there is something to save. It is replaced as a whole or not at all.

        Args:
            empty: Whether a file is also written if there is none yet and nothing was recorded.

        Returns:
            The file; `None` if nothing was written.

        Raises:
            CassetteConflictError: If another process has written it since it was read.
            CassetteWriteError: If the file cannot be written.
        """
        missing = empty and self._saved.digest is None
        if self.path is None or not (self.changed or missing):
            return None
        tools, recordings = self.tools, self.recordings
        data = encode_cassette(self.name, self.matching, tools, recordings)
        digest = write_cassette(self.path, data, before=self._saved.digest, name=self.name)
        self._saved = CassetteFile(
            name=self.name, matching=self.matching, tools=tools, recordings=recordings, digest=digest
        )
        self._saved_tools = {tool.key: tool for tool in tools}
        return self.path

    # Internals.

    def _read(self) -> CassetteFile:
        if self.path is None:
            return CassetteFile()
        check_needs()
        return read_replaceable(self.path) if self.mode == "rewrite" else read_cassette(self.path)

    def _scope(self, event: BeforeToolCall | AfterToolCall | OnToolCallError) -> ReplayScope:
        self._used = True
        return self._scopes.of(event.operation_id, event.parent_operation_id, event.agent_id)

    def _answer(self, event: BeforeToolCall, *, may_run: bool) -> ToolResult | None:
        tool = f"{event.toolset}/{event.tool_name}"
        scope = self._scope(event)
        try:
            args = self._redaction.value(to_json_value(event.args))
            key = self._recordings.key(scope.agent, tool, args)
        except Exception as error:
            # Arguments that cannot be encoded have no recording, and the real tool must not run instead.
            why = f"its arguments cannot be read ({type(error).__name__}: {message_of(error)})"
            return None if may_run else self._missed(f"{tool}: {why}. The real tool was not run.")
        found = self._recordings.take(key, (scope.operation(event.operation_id), event.call_index), scope)
        if found is None:
            known = self._recordings.count(key)
            return None if may_run else self._missed(explain_miss(self._recordings, tool, args, scope.agent, known))
        recording, place = found
        provenance = {"cassette": self.name, "recording": f"{tool} #{place}"}
        stale = self._find_change(scope.agent, tool, recording)
        if stale is not None:
            self.stale[tool] = stale
            if self._refuses_changed and not may_run:
                return self._missed(f"{tool}: {stale}. The real tool was not run. Record it again.")
            provenance["stale"] = stale
        return msgspec.structs.replace(recording.answer, metadata={**recording.metadata, **provenance})

    def _find_change(self, agent: str, tool: str, recording: RecordedCall) -> str | None:
        """Explain how a tool has changed since a recording of it was made; `None` if it has not, or nobody knows."""
        recorded = self._saved_tools.get((agent, tool))
        if recorded is None or id(recording) in self._recordings.made:
            return None
        present = self._present.find(agent, tool)
        changes = [] if present is None else schema_changes(recorded, present)
        if not changes:
            return None
        return f"the schema of {tool} has changed since it was recorded on {recorded.recorded}: {', '.join(changes)}"

    def _describe_tool(self, key: tuple[str, str], recordings: list[RecordedCall]) -> RecordedTool | None:
        saved = self._saved_tools.get(key)
        present = self._present.find(*key)
        if not all(id(recording) in self._recordings.made for recording in recordings):
            return saved  # what was recorded under an earlier schema must not look as if it were of the present one
        before = [each for each in self._saved.recordings if (each.agent, each.tool) == key]
        unchanged = sort_for_file(before) == recordings
        if present is None:
            return saved if unchanged else None
        if unchanged and saved is not None and saved.is_same(present):
            return saved  # its date is that of the latest change, so that recording the same again changes no file
        return msgspec.structs.replace(present, recorded=datetime.datetime.now(datetime.UTC).date().isoformat())

    def _missed(self, why: str) -> ToolResult:
        unmade = self.path is not None and not self._exists and not self.records
        hint = f" There is no file {self.path}: record it with mode='once'." if unmade else ""
        content = f"No recording in {self.name!r} answers {why}{hint}"
        self.misses.append(content)
        metadata = {"cassette": self.name, "recording": None, "unmocked": True}
        return ToolResult(content=content, success=False, metadata=metadata)

    def _keep(self, event: AfterToolCall | OnToolCallError, *, replace: bool) -> None:
        if event.mocked or event.answered_by is not None:
            return
        if isinstance(event, OnToolCallError) and is_interrupted(event):
            return  # the tool has answered nothing
        scope = self._scope(event)
        recording = recording_of(event, scope, self._redaction)
        key = self._recordings.key(recording.agent, recording.tool, recording.args)
        if self._recordings.record(key, recording, scope, replace=replace):
            self._dirty = True


def _check(name: object, mode: object, matching: object, ignore: object, changed_tools: object) -> None:
    if not isinstance(name, str | None) or name == "":
        raise HookUsageError(f"`name` of a Cassette is text; got {name!r}.")
    if mode not in get_args(RecordMode):
        raise HookUsageError(f"`mode` of a Cassette is one of {', '.join(get_args(RecordMode))}; got {mode!r}.")
    if matching is not None and matching not in get_args(Matching):
        raise HookUsageError(f"`matching` of a Cassette is keyed or sequential; got {matching!r}.")
    if changed_tools not in get_args(ChangedTools):
        raise HookUsageError(f"`changed_tools` of a Cassette is warn or refuse; got {changed_tools!r}.")
    if isinstance(ignore, str) or not isinstance(ignore, Sequence) or not all(isinstance(each, str) for each in ignore):
        raise HookUsageError(f"`ignore` of a Cassette is a list of fields, as ['request.id']; got {ignore!r}.")
