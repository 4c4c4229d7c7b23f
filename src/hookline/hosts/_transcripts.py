"""Read the model calls, with their tokens, from the transcripts that coding agents write of their sessions.

Events tell nothing of model calls, but they name a file to which the agent adds a line for each. A transcript is read
from where the last reading ended, and a line that is not understood is skipped: nothing depends on it but figures.
"""

from __future__ import annotations

import os
import stat
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import msgspec

__all__ = ["FORMATS", "ReportedCall", "SessionTranscripts", "Transcript", "TranscriptFormat"]

CHUNK = 1024 * 1024
LONGEST_LINE = 8 * 1024 * 1024
LONGEST_READING = 64 * 1024 * 1024
"""Bytes that one reading takes; the next one continues there."""
LONGEST_DOCUMENT = 32 * 1024 * 1024
"""Bytes of a file that is one JSON document, which is read as a whole."""
KEPT_IDS = 20_000
MOST_TRANSCRIPTS = 200
LONGEST_NAME = 200
MOST_TOKENS = 10**12

Record = Mapping[str, Any]


class ReportedCall(NamedTuple):
    """A model call that a transcript tells of.

    Attributes:
        id: What tells it from others in its transcript.
        at: When it ended, in unix seconds.
        model: The model.
        tokens: Its tokens, by the names of the price table: `input_tokens` and `output_tokens`, of which those that
            came from a cache or went to one are a part.
        agent_id: The sub-agent that made it, `""` for the session's own agent; `None` if the transcript has one agent.
        task: The task of the sub-agent, if its transcript begins with it.
        cost_usd: What it cost by the provider's list price; 0 if that is not known.
    """

    id: str
    at: float
    model: str
    tokens: Mapping[str, int]
    agent_id: str | None = None
    task: str = ""
    cost_usd: float = 0.0


class TranscriptFormat(NamedTuple):
    """How a coding agent writes its transcripts.

    Attributes:
        provider: The provider of its models, by OpenTelemetry's name; `""` if it can be any.
        markers: Texts of which each line that matters has one.
        parse: Reads a line; the second argument is what it keeps from earlier lines of the file.
        has_folder: Whether the transcripts of sub-agents are in a folder that no event names.
        names_own: Whether events inside a sub-agent name its transcript in the place of the session's.
        is_late: Whether lines are written so late that a sub-agent may have ended before its calls are told, which then
            count for the session's own agent; and the session itself before a last line says so.
    """

    provider: str
    markers: tuple[bytes, ...]
    parse: Callable[[Record, dict[str, Any]], Iterator[ReportedCall]]
    has_folder: bool = False
    names_own: bool = False
    is_late: bool = False


class Transcript:
    """A transcript, read piece by piece.

    Args:
        path: The file, which need not exist yet.
        form: How it is written.
        since: Calls that ended before this time, in unix seconds, are another operation's.

    Attributes:
        cost_usd: The cost of the whole session, if its transcript gives it; else `None`.
        first_prompt: The first text that a user, or a calling agent, wrote; `""` if it is not known.
    """

    def __init__(self, path: str, form: TranscriptFormat, since: float) -> None:
        self.path = path
        self._form, self._since = form, since
        self._known: OrderedDict[str, None] = OrderedDict()
        self._offset = 0
        self._file = (0, 0)
        self._kept: dict[str, Any] = {}

    @property
    def cost_usd(self) -> float | None:
        cost: float | None = self._kept.get("cost_usd")
        return cost

    @property
    def is_unfinished(self) -> bool:
        """Whether the file exists, and the line is missing that ends it."""
        return not self._kept.get("has_ended") and os.path.isfile(self.path)

    @property
    def first_prompt(self) -> str:
        text: str = self._kept.get("first_prompt", "")
        return text

    def read(self, until: float) -> list[ReportedCall]:
        """Return the calls that were added since the last reading, oldest first. A file that cannot be read has none.

        Args:
            until: When to stop, by `time.monotonic`; the next reading continues there.
        """
        try:
            # Not blocking, because a pipe in place of the file would block for ever.
            file = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except (OSError, ValueError):
            return []
        try:
            found = os.fstat(file)
            if not stat.S_ISREG(found.st_mode):
                return []
            if (found.st_dev, found.st_ino) != self._file or found.st_size < self._offset:
                self._file, self._offset = (found.st_dev, found.st_ino), 0
            calls: dict[str, ReportedCall] = {}
            for record in self._read_records(file, found.st_size, until):
                for call in self._parse(record):
                    calls[call.id] = call  # several lines may be about one call, the last of which is whole
        except OSError:
            return []
        finally:
            os.close(file)
        new = [call for call in calls.values() if call.id not in self._known and call.at >= self._since]
        self._known |= dict.fromkeys(calls)
        while len(self._known) > KEPT_IDS:
            self._known.popitem(last=False)
        return sorted((self._price(call) for call in new), key=lambda call: call.at)

    def _parse(self, record: Any) -> Iterator[ReportedCall]:
        try:
            yield from self._form.parse(record, self._kept)
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError):  # of another version
            return

    def _read_records(self, file: int, size: int, until: float) -> Iterator[Any]:
        if self.path.endswith(".json"):
            if self._offset < size <= LONGEST_DOCUMENT:
                document = decode_json(os.pread(file, size, 0))
                messages = document.get("messages") if isinstance(document, Mapping) else None
                self._offset = size
                yield from messages if isinstance(messages, list) else ()
            return
        for line in self._read_lines(file, until):
            if any(marker in line for marker in self._form.markers):
                yield decode_json(line)

    def _read_lines(self, file: int, until: float) -> Iterator[bytes]:
        """Yield whole lines; what was read of a line without an end is read again."""
        end, begun, skips = self._offset + LONGEST_READING, b"", False
        place = self._offset
        while place < end and monotonic() < until:
            part = os.pread(file, CHUNK, place)
            if not part:
                return
            place += len(part)
            *lines, rest = (begun + part).split(b"\n")
            for line in lines:
                self._offset += len(line) + 1
                if not skips:
                    yield line
                skips = False
            begun = rest
            if len(begun) > LONGEST_LINE:
                self._offset, begun, skips = place, b"", True

    def _price(self, call: ReportedCall) -> ReportedCall:
        if not self._form.provider:
            return call
        from hookline.loop import cost_of  # not before it is needed: its price table takes a while to load

        return call._replace(cost_usd=cost_of(call.tokens, call.model, self._form.provider) or 0.0)


class SessionTranscripts:
    """The transcripts of one session: its own, and those of its sub-agents where they have some.

    Args:
        form: How the coding agent writes them; `None` if it writes none with tokens.
        since: Calls that ended before this time, in unix seconds, are another operation's.
    """

    def __init__(self, form: TranscriptFormat | None, since: float) -> None:
        self._form, self._since = form, since
        self._files: dict[str, tuple[str, Transcript]] = {}

    @property
    def provider(self) -> str:
        """The provider of the models; `""` if it is not known."""
        return self._form.provider if self._form is not None else ""

    @property
    def has_tokens(self) -> bool:
        """Whether the coding agent writes tokens anywhere."""
        return self._form is not None

    @property
    def is_late(self) -> bool:
        """Whether the calls of a sub-agent may be told only after it has ended."""
        return self._form is not None and self._form.is_late

    @property
    def is_unfinished(self) -> bool:
        """Whether the coding agent still writes what happened before the session ended."""
        return self.is_late and any(each.is_unfinished for _, each in self._files.values())

    @property
    def cost_usd(self) -> float | None:
        """The cost of the whole session, if a transcript gives it."""
        return next((each.cost_usd for _, each in self._files.values() if each.cost_usd is not None), None)

    def note(self, path: str, agent_id: str) -> None:
        """Note a transcript that an event has named.

        Args:
            path: The file.
            agent_id: The sub-agent that it is of; `""` for the session's own agent.
        """
        is_new = path.startswith("/") and path not in self._files and len(self._files) < MOST_TRANSCRIPTS
        if self._form is not None and is_new:
            self._files[path] = (agent_id, Transcript(path, self._form, self._since))

    def note_session(self, path: str, agent_id: str) -> None:
        """Note the file that an event names as the transcript of the session.

        Args:
            path: The file.
            agent_id: The sub-agent in which the event happened; `""` for the session's own agent.
        """
        self.note(path, agent_id if self._form is not None and self._form.names_own else "")

    def note_beside(self, session_id: str) -> None:
        """Note the transcripts of sub-agents that stand beside that of the session, and that no event names."""
        if self._form is not None and self._form.has_folder:
            for path in [each for each, (agent_id, _) in self._files.items() if not agent_id]:
                for found in find_agent_transcripts(path, session_id):
                    self.note(found, found)

    def read(self, session_id: str, seconds: float) -> list[ReportedCall]:
        """Return the calls that were added since the last reading; each names its sub-agent.

        Args:
            session_id: The session.
            seconds: How long it may take; what is left is read the next time.
        """
        until = monotonic() + seconds
        self.note_beside(session_id)
        found = []
        for agent_id, each in list(self._files.values()):
            for call in each.read(until):
                owner = call.agent_id if call.agent_id is not None else agent_id
                found.append(call._replace(agent_id=owner, task=each.first_prompt if agent_id else ""))
        return found


def decode_json(data: bytes) -> Any:
    """Decode JSON; `None` if it is none."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def read_count(given: Mapping[str, Any], *names: str) -> int:
    """Return the sum of some counts; what is no count is 0."""
    found = (given.get(name) for name in names)
    return sum(min(each, MOST_TOKENS) for each in found if isinstance(each, int) and each > 0)


def read_time(record: Record) -> float:
    """Return the time of a line, in unix seconds.

    Raises:
        ValueError: If it has none.
    """
    return datetime.fromisoformat(str(record.get("timestamp"))).timestamp()


def make_call(
    record: Record, call_id: Any, model: Any, tokens: Mapping[str, int], agent_id: str | None = None
) -> ReportedCall:
    """Return the call that a line tells of.

    Args:
        record: The line.
        call_id: The id of the call.
        model: The model.
        tokens: Its tokens; those of which there are none are left out.
        agent_id: The sub-agent.
    """
    return ReportedCall(
        id=str(call_id)[:LONGEST_NAME],
        at=read_time(record),
        model=str(model or "")[:LONGEST_NAME],
        tokens={name: count for name, count in tokens.items() if count},
        agent_id=agent_id,
    )


def parse_claude(record: Record, kept: dict[str, Any]) -> Iterator[ReportedCall]:
    """Read a line of Claude Code: one for each block of an answer, and the cost of the session at its end."""
    if record.get("type") == "cost-state":
        cost = record.get("totalCostUSD")
        if isinstance(cost, int | float) and 0 <= cost < 1e9:
            kept["cost_usd"] = float(cost)
        return
    message = record["message"]
    usage = message["usage"]
    if record.get("type") != "assistant" or message.get("model") == "<synthetic>":
        return
    tokens = {
        "input_tokens": read_count(usage, "input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"),
        "output_tokens": read_count(usage, "output_tokens"),
        "cache_read_tokens": read_count(usage, "cache_read_input_tokens"),
        "cache_write_tokens": read_count(usage, "cache_creation_input_tokens"),
    }
    agent_id = str(record.get("agentId", "")) if record.get("isSidechain") else ""
    yield make_call(record, message["id"], message.get("model"), tokens, agent_id)


def parse_codex(record: Record, kept: dict[str, Any]) -> Iterator[ReportedCall]:
    """Read a line of a rollout of Codex. Older versions write no record for each call, but the totals after it."""
    kind, payload = record.get("type"), record["payload"]
    if kind == "turn_context":
        kept["model"] = payload.get("model", "")
    elif kind == "token_usage_record":
        kept["has_records"] = True
        yield make_call(record, payload["response_id"], kept.get("model"), _codex_tokens(payload["usage"]))
    elif kind == "event_msg" and payload.get("type") == "token_count" and not kept.get("has_records"):
        info = payload["info"]
        total = "/".join(str(info["total_token_usage"].get(name)) for name in ("input_tokens", "output_tokens"))
        yield make_call(record, total, kept.get("model"), _codex_tokens(info["last_token_usage"]))


def _codex_tokens(usage: Mapping[str, Any]) -> dict[str, int]:
    return {
        "input_tokens": read_count(usage, "input_tokens"),
        "output_tokens": read_count(usage, "output_tokens"),
        "cache_read_tokens": read_count(usage, "cached_input_tokens"),
        "cache_write_tokens": read_count(usage, "cache_write_input_tokens"),
    }


def parse_gemini(record: Record, kept: dict[str, Any]) -> Iterator[ReportedCall]:
    """Read a line of Gemini CLI: a message, written again when it changes, or a change of all messages."""
    changed = record.get("$set")
    if isinstance(changed, Mapping):
        for message in changed.get("messages") or ():
            yield from parse_gemini(message, kept)
        return
    if record.get("type") == "user":
        if "first_prompt" not in kept:
            content = record["content"]
            kept["first_prompt"] = content if isinstance(content, str) else "".join(each["text"] for each in content)
        return
    usage = record["tokens"]
    tokens = {
        "input_tokens": read_count(usage, "input", "tool"),
        "output_tokens": read_count(usage, "output", "thoughts"),
        "cache_read_tokens": read_count(usage, "cached"),
    }
    yield make_call(record, record["id"], record.get("model"), tokens)


def parse_copilot(record: Record, kept: dict[str, Any]) -> Iterator[ReportedCall]:
    """Read a line of Copilot CLI, whose costs are counts of requests, not of dollars."""
    if record.get("type") == "session.shutdown":
        kept["has_ended"] = True
    if record.get("type") != "session.usage_record":
        return
    usage = record["data"]["usage"]
    tokens = {"input_tokens": read_count(usage, "inputTokens"), "output_tokens": read_count(usage, "outputTokens")}
    yield make_call(record, record["id"], usage.get("model"), tokens, str(record.get("agentId") or ""))


FORMATS: Mapping[str, TranscriptFormat] = {
    "claude": TranscriptFormat("anthropic", (b'"usage"', b'"cost-state"'), parse_claude),
    "codex": TranscriptFormat(
        "openai", (b'"token_usage_record"', b'"token_count"', b'"turn_context"'), parse_codex, names_own=True
    ),
    "gemini": TranscriptFormat("gcp.gemini", (b'"tokens"', b'"user"'), parse_gemini, has_folder=True),
    "copilot": TranscriptFormat("", (b'"session.usage_record"', b'"session.shutdown"'), parse_copilot, is_late=True),
}
"""By the names of the coding agents; Cursor's transcripts have no tokens."""


def find_agent_transcripts(path: str, session_id: str) -> list[str]:
    """Return the transcripts of sub-agents that Gemini CLI keeps in a folder beside that of their session.

    Args:
        path: The transcript of the session.
        session_id: The session.
    """
    if not session_id or "/" in session_id or session_id.startswith("."):
        return []
    try:
        return sorted(str(each) for each in (Path(path).parent / session_id).glob("*.jsonl"))
    except (OSError, ValueError):
        return []
