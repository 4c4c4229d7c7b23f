"""What a chat shows: text as it comes, lines about what happens, questions. Only the main thread writes."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from hookline.cli.chat import _lines as lines
from hookline.cli.trace import DENIED, FAILED, OK, WAITING, fit
from hookline.events import (
    AfterCallAgent,
    AfterCompact,
    AfterToolCall,
    BeforeCallAgent,
    BeforeStep,
    BeforeToolCall,
    EventFields,
    OnCallAgentError,
    OnCompactError,
    OnToolCallError,
    PendingTool,
)
from hookline.runtime import OperationResult, Usage

__all__ = ["Screen"]

MIN_ROOM = 20
"""Columns that a line has at least, however deep it is indented."""


class Screen:
    """A terminal, a pipe or a file that a chat is shown on.

    Args:
        console: What it is written to.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self._fresh = True
        self._depths: dict[str, int] = {}

    # What an agent says and does.

    def text(self, piece: str) -> None:
        """Show text of the model, at once."""
        shown = lines.harmless(piece)
        self.console.file.write(shown)
        self.console.file.flush()
        self._fresh = shown.endswith("\n") if shown else self._fresh

    def step(self, event: BeforeStep) -> None:
        """A step has begun; the first one needs no mention."""
        if event.step_index:
            self.line(Text(f"· step {event.step_index + 1}", "dim"), self._depth(event))

    def tool_begins(self, event: BeforeToolCall) -> None:
        """A tool is being called."""
        self.line(lines.begun(lines.tool_name(event.toolset, event.tool_name), event.args), self._depth(event))

    def tool_ended(self, event: AfterToolCall | OnToolCallError) -> None:
        """A tool call has ended."""
        text, whole = lines.ended(event)
        self.line(text, self._depth(event), whole=whole)

    def agent_begins(self, event: BeforeCallAgent) -> None:
        """A sub-agent is being called."""
        name = f"agent/{lines.fold(event.callee_id, 80)}"
        said = (f"  {lines.fold(event.instruction)}", "dim")
        self.line(Text.assemble(("→ ", "cyan"), (name, "bold cyan"), said), self._depth(event))

    def agent_ended(self, event: AfterCallAgent) -> None:
        """A sub-agent has ended."""
        mark = OK if event.success else FAILED
        self.line(Text.assemble((f"{mark.glyph} ", mark.style), (f"agent/{lines.fold(event.callee_id, 80)}", "cyan")))

    def agent_failed(self, event: OnCallAgentError) -> None:
        """A sub-agent could not be called, or ended with an error."""
        said = f"{FAILED.glyph} agent/{lines.fold(event.callee_id, 80)}  {lines.fold(event.error)}"
        self.line(Text(said, "red"), self._depth(event))

    def compacted(self, event: AfterCompact | OnCompactError) -> None:
        """The conversation was made shorter, or that failed."""
        if isinstance(event, AfterCompact):
            said = Text(f"· {event.messages_before} messages became {event.messages_after}", "dim")
        else:
            said = Text(f"{FAILED.glyph} compaction failed: {lines.fold(event.error)}", "red")
        self.line(said, self._depth(event))

    def over(self, result: OperationResult, nanoseconds: int) -> None:
        """An answer has ended: why, if not as it should, and what it took."""
        self._depths.clear()
        why = lines.went(result)
        if why is not None:
            self.line(why, whole=True)
        self.line(Text(lines.figures(result.usage, result.tool_calls, nanoseconds), "dim"))

    # Questions, and all else.

    def question(self, pending: PendingTool, choices: str) -> None:
        """Show a person the whole call to decide about, what a hook asks about it, and what can be answered."""
        name = lines.tool_name(pending.toolset, pending.tool_name)
        self.line(Text.assemble((f"{WAITING.glyph} ", WAITING.style), (name, "bold"), " needs your approval"))
        given = list(lines.arguments(pending.args))
        column = max((len(key) for key, _ in given), default=0)
        for key, value in given:
            self.line(Text.assemble((f"{key:{column}}  ", "dim"), value), 1, whole=True)
        if pending.prompt:
            self.line(Text(lines.fold(pending.prompt, lines.MAX_SHOWN), WAITING.style), 1, whole=True)
        self.line(Text(choices, "dim"), 1, whole=True)

    def decided(self, pending: PendingTool, said: str, *, approved: bool) -> None:
        """What was decided without a person, and why."""
        mark, name = OK if approved else DENIED, lines.tool_name(pending.toolset, pending.tool_name)
        self.line(Text.assemble((f"{mark.glyph} ", mark.style), (name, "cyan"), (f"  {said}", mark.style)))

    def totals(self, usage: Usage, tool_calls: int, answers: int) -> None:
        """What all answers so far took."""
        counted = f"{answers} answer{'' if answers == 1 else 's'}"
        self.line(Text(" · ".join(filter(None, [counted, lines.figures(usage, tool_calls)]))))

    def note(self, said: str) -> None:
        """A quiet remark of the chat itself, which the terminal may break anywhere: paths stay as they are."""
        self.fresh()
        self.console.print(fit(Text(lines.harmless(said), "dim"), self.console.options), soft_wrap=True)

    def row(self, said: str) -> None:
        """A quiet line of a list, which is cut where the terminal ends."""
        self.line(Text(lines.harmless(said), "dim"))

    def warning(self, said: str) -> None:
        """What a log would have said."""
        self.line(Text(f"! {lines.fold(said, lines.MAX_SHOWN)}", "yellow"), whole=True)

    def trouble(self, error: BaseException) -> None:
        """An error that ends no chat."""
        self.line(lines.trouble(error), whole=True)

    def blank(self) -> None:
        """An empty line."""
        self.fresh()
        self.console.line()

    def disturbed(self) -> None:
        """Something else has written, such as the terminal its ^C."""
        self._fresh = False

    def fresh(self) -> None:
        """Go to the beginning of a line."""
        if not self._fresh:
            self.console.line()
            self._fresh = True

    def line(self, text: Text, depth: int = 0, *, whole: bool = False) -> None:
        """Show a line of its own; it is cut where the terminal ends, unless all of it is to be seen."""
        self.fresh()
        indent = 2 * depth
        text = fit(text, self.console.options)
        room = max(MIN_ROOM, self.console.width - indent)
        if whole:
            parts = list(text.wrap(self.console, room - 2, overflow="fold"))
        else:
            text.truncate(room, overflow="ellipsis")
            parts = [text]
        for number, part in enumerate(parts):
            indented = Text(" " * (indent + (2 if number else 0))).append_text(part)
            self.console.print(indented, soft_wrap=True)

    def _depth(self, event: EventFields) -> int:
        """How many agents stand between the one that this is about and the one that the person talks to."""
        depth = self._depths.get(event.operation_id)
        if depth is None:
            parent = event.parent_operation_id
            depth = 0 if parent is None else self._depths.get(parent, 0) + 1
            self._depths[event.operation_id] = depth
        return depth
