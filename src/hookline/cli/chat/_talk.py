"""Lead a conversation between a person and an agent that runs in a thread of its own.

The main thread shows everything and reads what is typed: Ctrl-C arrives there, and neither a slow terminal nor a person
who thinks holds up the agent's connections.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import CancelledError, Future
from functools import partial
from time import perf_counter_ns
from typing import Any

from hookline.cli._exit_codes import was_terminated
from hookline.cli.chat import _lines as lines
from hookline.cli.chat._files import ChatFiles
from hookline.cli.chat._foreground import Foreground, InterruptedTwice
from hookline.cli.chat._keyboard import Keyboard
from hookline.cli.chat._screen import Screen
from hookline.cli.errors import AgentExitError
from hookline.errors import HooklineError
from hookline.events import PendingTool
from hookline.execution import Portal
from hookline.runtime import AgentSession, Approve, OperationResult, Reject, Release, Usage

__all__ = ["COMMANDS", "Talk"]

COMMANDS = {
    "/help": "show this list",
    "/tools": "list the agent's tools",
    "/history": "show the conversation",
    "/trace": "show the last answer as a tree with durations",
    "/usage": "show tokens and cost so far",
    "/reset": "clear the conversation",
    "/exit": "exit; so do Ctrl-D, and Ctrl-C on an empty line",
}

CHOICES = "y = approve, n = reject and continue (n WHY tells the agent why), s = reject and stop"
QUESTION = "  y/n/s? "

NOBODY = "Nobody is available to approve this call."


class Talk:
    """A conversation between a person and an agent.

    Args:
        portal: The thread in which the agent runs.
        session: The agent's session, which is open.
        screen: Shows the chat.
        keyboard: Reads what the person says.
        kept: Writes the files of the chat.
        foreground: The main thread.
        approves: Whether every call that needs approval is approved.
        release: When text of the model is shown.

    Attributes:
        interrupted: Whether the last answer was ended by Ctrl-C.
        unattended: How many calls were refused because nobody was there who could approve them.
    """

    def __init__(
        self,
        portal: Portal,
        session: AgentSession,
        screen: Screen,
        keyboard: Keyboard | None,
        kept: ChatFiles,
        foreground: Foreground,
        *,
        approves: bool,
        release: Release,
    ) -> None:
        self._portal, self._session, self._screen, self._keyboard = portal, session, screen, keyboard
        self._kept, self._foreground = kept, foreground
        self._approves, self._release = approves, release
        self._usage, self._tool_calls, self._answers = Usage(), 0, 0
        self._worked = 0
        self.interrupted = False
        self.unattended = 0

    def answer_until_exit(self) -> None:
        """Greet, and answer until the person leaves."""
        assert self._keyboard is not None
        agent, specs = self._session.agent, self._session.specs
        tools = f"{len(specs)} tool{'' if len(specs) == 1 else 's'}"
        self._screen.show_note(f"{agent.id} · {getattr(agent.model, 'name', '?')} · {tools} · /help")
        self._screen.show_blank()
        while not was_terminated():
            self._foreground.catch_up()
            try:
                with self._foreground.reading():
                    said = self._keyboard.line().strip()
                if not self._keyboard.is_terminal:
                    self._screen.show_note(f"> {said}")
            except (EOFError, KeyboardInterrupt):
                return
            command = said.partition(" ")[0].lower()
            if command in ("/exit", "/quit"):
                return
            if command in COMMANDS:
                self._command(command)
            elif re.fullmatch(r"/\w*", said):
                self._screen.show_note(f"Unknown command {said}. Commands: {' '.join(COMMANDS)}")
            elif said:
                self.answer(said)
                self._screen.show_blank()

    def answer(self, said: str, *, streams: bool = True) -> OperationResult | None:
        """Have the agent answer, and ask the person where it has to ask.

        Args:
            said: What the person said.
            streams: Whether text is shown while it is written.

        Returns:
            The result of the run; `None` if the session failed.

        Raises:
            AgentExitError: If the agent has ended its thread.
            InterruptedTwice: If the person will not wait for the end of an answer that was interrupted.
        """
        session = self._session
        self._worked = 0
        self.interrupted = False
        take = self._take if streams else None
        self._kept.begin()
        try:
            result = self._wait(partial(session.run, said, on_token=take, release=self._release))
            while result.reason == "waiting_for_human":
                decisions = self._decide(result.pending)
                result = self._wait(partial(session.resume, decisions, on_token=take, release=self._release))
        except (AgentExitError, InterruptedTwice):
            raise
        except Exception as error:
            self._screen.show_error(error)
            return None
        finally:
            self._keep()
        self._screen.show_end(result, self._worked)
        used, more = self._usage, result.usage
        self._usage = Usage(
            input_tokens=used.input_tokens + more.input_tokens,
            output_tokens=used.output_tokens + more.output_tokens,
            cost_usd=used.cost_usd + more.cost_usd,
        )
        self._tool_calls += result.tool_calls
        self._answers += 1
        return result

    def _take(self, piece: str) -> None:
        self._foreground.later(partial(self._screen.show_text, piece))

    def _wait(self, work: Callable[[], Awaitable[OperationResult]]) -> OperationResult:
        """Run something in the agent's thread, and show events until it returns."""
        started = perf_counter_ns()
        future = self._start_task(_catch_exit, work)
        self._foreground.until(
            future, self._interrupt, partial(self._screen.show_note, "Press Ctrl-C again to exit now.")
        )
        self._worked += perf_counter_ns() - started
        self.interrupted |= self._foreground.pressed
        try:
            result: OperationResult = future.result()
        except CancelledError as error:
            raise AgentExitError("an exception in one of several tasks") from error
        return result

    def check(self) -> None:
        """Check that the agent's thread is still alive, so that the session can be closed in order.

        Raises:
            AgentExitError: If it is not.
        """
        self._start_task(bool)

    def _start_task(self, work: Callable[..., Any], *args: object) -> Future[Any]:
        try:
            return self._portal.start(work, *args)
        except RuntimeError as error:
            raise AgentExitError("an exception in one of several tasks") from error

    def _interrupt(self) -> bool:
        self._screen.expect_other_output()
        return self._session.interrupt()  # which waits for nothing, and may be called from this thread

    def _decide(self, pending: Sequence[PendingTool]) -> list[Approve | Reject]:
        """Ask about each call, up to the first that the person rejects to stop the run."""
        decisions: list[Approve | Reject] = []
        for call in pending:
            decision = self._ask(call)
            if isinstance(decision, Reject) and not decision.and_continue:
                return [decision]
            decisions.append(decision)
        return decisions

    def _ask(self, call: PendingTool) -> Approve | Reject:
        if self._approves:
            self._screen.show_decision(call, "approved by --yes", approved=True)
            return Approve(call.tool_call_id)
        if self._keyboard is None or not self._keyboard.is_terminal:
            self.unattended += 1
            self._screen.show_decision(
                call, "rejected and continued: nobody can approve it here; pass --yes to approve calls", approved=False
            )
            return Reject(call.tool_call_id, NOBODY, and_continue=True)
        self._screen.show_question(call, CHOICES)
        while True:
            try:
                with self._foreground.reading():
                    word, _, why = self._keyboard.answer(QUESTION).strip().partition(" ")
            except (EOFError, KeyboardInterrupt):
                word, why = "s", ""
            if word == "N":  # a no that is louder
                word = "s"
            match word.lower():
                case "y" | "yes":
                    return Approve(call.tool_call_id)
                case "n" | "no":
                    return Reject(call.tool_call_id, why.strip(), and_continue=True)
                case "s" | "stop":
                    return Reject(call.tool_call_id, why.strip())

    def _keep(self) -> None:
        try:
            self._kept.save()
        except (HooklineError, OSError) as error:
            self._screen.show_error(error)

    def _command(self, command: str) -> None:
        screen = self._screen
        if command == "/tools":
            self._show_tools()
        elif command == "/history":
            for message in self._session.history:
                asked = ", ".join(lines.format_tool_name(each.toolset, each.tool_name) for each in message.tool_calls)
                screen.show_row(f"{message.role:9}  {lines.shorten(message.content) or f'→ {asked}'}")
        elif command == "/trace":
            try:
                self._kept.show(screen.console)
                screen.show_note("Events do not include model calls. To see them, send spans with --otlp-endpoint.")
            except (HooklineError, OSError) as error:
                screen.show_error(error)
        elif command == "/usage":
            screen.show_totals(self._usage, self._tool_calls, self._answers)
        elif command == "/reset":
            self._session.history.clear()
            screen.show_note("Conversation cleared.")
        else:
            for name, meaning in COMMANDS.items():
                screen.show_row(f"{name:9}  {meaning}")
        screen.show_blank()

    def _show_tools(self) -> None:
        for spec in self._session.specs:
            first = lines.shorten(spec.description.partition("\n")[0], 80)
            asked = "  asks first" if getattr(spec, "needs_approval", False) else ""
            self._screen.show_row(f"{lines.format_tool_name(spec.toolset, spec.name)}{asked}  {first}")
        if not self._session.specs:
            self._screen.show_note("The agent has no tools.")


async def _catch_exit(work: Callable[[], Awaitable[OperationResult]]) -> OperationResult:
    """Run something, and turn an exception that would end the event loop into an `AgentExitError`."""
    try:
        return await work()
    except (SystemExit, KeyboardInterrupt) as error:
        raise AgentExitError(f"{type(error).__name__}: {error}".rstrip(": ")) from error
