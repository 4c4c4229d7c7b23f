"""Show a chat in the terminal: text as it comes, lines about events, questions. Only the main thread writes."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from hookline.cli._terminal import make_harmless
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
    """Writes a chat to a terminal, a pipe or a file.

    Args:
        console: The console to write to.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self._fresh = True
        self._depths: dict[str, int] = {}

    # Text and events of the agent.

    def show_text(self, piece: str) -> None:
        """Show text of the model, at once."""
        shown = make_harmless(piece)
        self.console.file.write(shown)
        self.console.file.flush()
        self._fresh = shown.endswith("\n") if shown else self._fresh

    def show_step(self, event: BeforeStep) -> None:
        """Show that a step begins, unless it is the first one."""
        if event.step_index:
            self.show_line(Text(f"· step {event.step_index + 1}", "dim"), self._depth(event))

    def show_tool_start(self, event: BeforeToolCall) -> None:
        """Show that a tool call begins."""
        self.show_line(
            lines.format_tool_start(lines.format_tool_name(event.toolset, event.tool_name), event.args),
            self._depth(event),
        )

    def show_tool_end(self, event: AfterToolCall | OnToolCallError) -> None:
        """Show that a tool call ended."""
        text, whole = lines.format_tool_end(event)
        self.show_line(text, self._depth(event), whole=whole)

    def show_agent_start(self, event: BeforeCallAgent) -> None:
        """Show that a call of a sub-agent begins."""
        name = f"agent/{lines.shorten(event.callee_id, 80)}"
        said = (f"  {lines.shorten(event.instruction)}", "dim")
        self.show_line(Text.assemble(("→ ", "cyan"), (name, "bold cyan"), said), self._depth(event))

    def show_agent_end(self, event: AfterCallAgent) -> None:
        """Show that a call of a sub-agent ended."""
        mark = OK if event.success else FAILED
        name = f"agent/{lines.shorten(event.callee_id, 80)}"
        self.show_line(Text.assemble((f"{mark.glyph} ", mark.style), (name, "cyan")), self._depth(event))

    def show_agent_error(self, event: OnCallAgentError) -> None:
        """Show that a sub-agent could not be called, or ended with an error."""
        said = f"{FAILED.glyph} agent/{lines.shorten(event.callee_id, 80)}  {lines.shorten(event.error)}"
        self.show_line(Text(said, "red"), self._depth(event))

    def show_compaction(self, event: AfterCompact | OnCompactError) -> None:
        """Show that the conversation was compacted, or that compaction failed."""
        if isinstance(event, AfterCompact):
            said = Text(f"· {event.messages_before} messages became {event.messages_after}", "dim")
        else:
            said = Text(f"{FAILED.glyph} compaction failed: {lines.shorten(event.error)}", "red")
        self.show_line(said, self._depth(event))

    def show_end(self, result: OperationResult, nanoseconds: int) -> None:
        """Show that an answer ended, why if it is not complete, and what it took."""
        self._depths.clear()
        why = lines.format_ending(result)
        if why is not None:
            self.show_line(why, whole=True)
        self.show_line(Text(lines.format_totals(result.usage, result.tool_calls, nanoseconds), "dim"))

    # Questions and remarks of the chat itself.

    def show_question(self, pending: PendingTool, choices: str) -> None:
        """Show a person the whole call to decide about, what a hook asks about it, and what can be answered."""
        name = lines.format_tool_name(pending.toolset, pending.tool_name)
        self.show_line(Text.assemble((f"{WAITING.glyph} ", WAITING.style), (name, "bold"), " needs your approval"))
        given = list(lines.format_arguments(pending.args))
        column = max((len(key) for key, _ in given), default=0)
        for key, value in given:
            self.show_line(Text.assemble((f"{key:{column}}  ", "dim"), value), 1, whole=True)
        if pending.prompt:
            self.show_line(Text(lines.shorten(pending.prompt, lines.MAX_SHOWN), WAITING.style), 1, whole=True)
        self.show_line(Text(choices, "dim"), 1, whole=True)

    def show_decision(self, pending: PendingTool, said: str, *, approved: bool) -> None:
        """Show a decision that was made without a person, and why."""
        mark, name = OK if approved else DENIED, lines.format_tool_name(pending.toolset, pending.tool_name)
        self.show_line(Text.assemble((f"{mark.glyph} ", mark.style), (name, "cyan"), (f"  {said}", mark.style)))

    def show_totals(self, usage: Usage, tool_calls: int, answers: int) -> None:
        """Show what all answers so far took."""
        counted = f"{answers} answer{'' if answers == 1 else 's'}"
        self.show_line(Text(" · ".join(filter(None, [counted, lines.format_totals(usage, tool_calls)]))))

    def show_note(self, said: str) -> None:
        """Show a dim remark, which the terminal may break anywhere: paths can be copied."""
        self.start_line()
        self.console.print(fit(Text(make_harmless(said), "dim"), self.console.options), soft_wrap=True)

    def show_row(self, said: str) -> None:
        """Show a dim line of a list, cut where the terminal ends."""
        self.show_line(Text(make_harmless(said), "dim"))

    def show_warning(self, said: str) -> None:
        """Show a log record of a warning or an error."""
        self.show_line(Text(f"! {lines.shorten(said, lines.MAX_SHOWN)}", "yellow"), whole=True)

    def show_error(self, error: BaseException) -> None:
        """Show an error that does not end the chat."""
        self.show_line(lines.format_error(error), whole=True)

    def show_blank(self) -> None:
        """Show an empty line."""
        self.start_line()
        self.console.line()

    def expect_other_output(self) -> None:
        """Note that something else writes too, such as the terminal its ^C: the next line starts anew."""
        self._fresh = False

    def start_line(self) -> None:
        """Go to the beginning of a line, unless the screen is there."""
        if not self._fresh:
            self.console.line()
            self._fresh = True

    def show_line(self, text: Text, depth: int = 0, *, whole: bool = False) -> None:
        """Show a text on a line of its own, cut at the width of the terminal unless `whole` is set."""
        self.start_line()
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
        """Return how many calls of sub-agents lie between an event's operation and the conversation."""
        depth = self._depths.get(event.operation_id)
        if depth is None:
            parent = event.parent_operation_id
            depth = 0 if parent is None else self._depths.get(parent, 0) + 1
            self._depths[event.operation_id] = depth
        return depth
