"""`hookline chat AGENT`: talk to an agent, see its tool calls, and decide about calls that need approval."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from hookline.cli._exit_codes import DONE, FAILED, exit_code_of, interrupted_code, was_terminated
from hookline.cli._options import Endpoint
from hookline.cli._outputs import send_spans
from hookline.cli._terminal import make_harmless, report_errors
from hookline.cli.chat._agent import AgentArguments, load_hooks, make_agent
from hookline.cli.chat._files import ChatFiles
from hookline.cli.chat._foreground import Foreground, InterruptedTwice
from hookline.cli.chat._keyboard import Keyboard
from hookline.cli.chat._screen import Screen
from hookline.cli.chat._talk import COMMANDS, Talk
from hookline.cli.chat._watch import make_watcher, show_warnings
from hookline.cli.errors import AgentExitError, ChatStartError
from hookline.cli.trace import Tracing
from hookline.errors import HooklineError, message_of
from hookline.execution import open_portal
from hookline.hooks import AnyHook
from hookline.runtime import Agent, AgentSession, Release

__all__ = ["chat"]


def chat(
    agent: Annotated[
        str | None,
        typer.Argument(
            metavar="AGENT", help="package.module:name or file.py:name: an Agent, or a function that returns one."
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="The model, such as openai:gpt-5; replaces the agent's own.")
    ] = None,
    mcp: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=SERVER", help="An MCP server: name='command args' or name=URL; repeatable."),
    ] = None,
    instructions: Annotated[
        str | None, typer.Option(metavar="TEXT", help="The system message; replaces the agent's own.")
    ] = None,
    hooks: Annotated[
        list[str] | None,
        typer.Option(metavar="PATH", help="More hooks: package.module:name or file.py:name; repeatable."),
    ] = None,
    prompt: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Send this prompt, print the answer and exit.")
    ] = None,
    approves: Annotated[bool, typer.Option("--yes", help="Approve every call that needs approval.")] = False,
    incremental: Annotated[
        bool, typer.Option("--incremental", help="Show text as the model writes it, before hooks can change it.")
    ] = False,
    trace: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the events to this file, for `hookline trace FILE`.")
    ] = None,
    cassette: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Record tool results to this file, as a cassette.")
    ] = None,
    otlp_endpoint: Endpoint = None,
) -> None:
    """Talk to an agent in the terminal, and approve its tool calls.

    AGENT is an import path (package.module:name) or a file (agent.py:name). Modules in the current folder can be
    imported. Without AGENT, --model creates an agent. Ctrl-C interrupts an answer; Ctrl-D exits.

    Exit codes: 1 if --prompt was not answered, or a call was rejected because nobody could approve it; 2 for a wrong
    name; 4 if spans did not arrive; 130 if --prompt was interrupted.
    """
    threads = set(threading.enumerate())
    with report_errors():
        kept = ChatFiles(trace, cassette)
        tracing = Tracing(otlp_endpoint) if otlp_endpoint is not None else None
        found = make_agent(AgentArguments(target=agent, model=model, servers=mcp or (), instructions=instructions))
        bundles = [*load_hooks(hooks or ()), *kept.hooks(), *([tracing.hooks] if tracing else [])]
        console = Console(highlight=False, stderr=prompt is not None)
        release: Release = "incremental" if incremental else "checked"
        status = _hold_chat(found, bundles, Screen(console), kept, prompt, approves=approves, release=release)
        arrived = True
        if tracing is not None:
            tracing.hooks.close()
            arrived = send_spans(console, tracing)
        status = status or exit_code_of(ok=True, arrived=arrived)
    if any(each not in threads and not each.daemon for each in threading.enumerate()):
        _exit_now(status)  # a tool runs in a thread, which nobody can stop: Python would wait for it
    raise typer.Exit(status)


def _hold_chat(
    agent: Agent,
    hooks: Sequence[AnyHook],
    screen: Screen,
    kept: ChatFiles,
    prompt: str | None,
    *,
    approves: bool,
    release: Release,
) -> int:
    """Hold a chat, from opening the agent's tool sources to closing them, and return the exit code."""
    foreground = Foreground()
    session = AgentSession(agent, hooks=[*hooks, make_watcher(screen, foreground.later)])
    keyboard = Keyboard(list(COMMANDS), colours=not screen.console.no_color) if prompt is None else None
    with ExitStack() as stack:
        stack.enter_context(show_warnings(screen, foreground.later))
        portal = stack.enter_context(open_portal())
        if agent.sources:
            screen.show_note(f"Opening {', '.join(source.toolset for source in agent.sources)} …")
        _open_session(stack, agent, portal.open(session))
        stack.enter_context(foreground)
        talk = Talk(portal, session, screen, keyboard, kept, foreground, approves=approves, release=release)
        try:
            status = _converse(talk, prompt)
            talk.check()
        except InterruptedTwice:  # what would not end when it was interrupted does not end when it is left either
            _print_files(screen, kept)
            _exit_now(interrupted_code())
        except AgentExitError as error:
            screen.show_error(error)
            _print_files(screen, kept)
            _exit_now(FAILED)
    foreground.catch_up()
    _print_files(screen, kept)
    return status


def _open_session(stack: ExitStack, agent: Agent, session: AbstractContextManager[AgentSession]) -> None:
    """Open the session, and with it the agent's tool sources."""
    try:
        stack.enter_context(session)
    except HooklineError:
        raise
    except Exception as error:
        raise ChatStartError(agent.id, f"{type(error).__name__}: {message_of(error)}") from error


def _converse(talk: Talk, prompt: str | None) -> int:
    """Have the conversation, or print the one answer alone on stdout; return the exit code."""
    if prompt is None:
        talk.answer_until_exit()
        return interrupted_code() if was_terminated() else FAILED if talk.unattended else DONE
    result = talk.answer(prompt, streams=False)
    if result is None:
        return FAILED
    if result.output:
        sys.stdout.write(f"{make_harmless(result.output) if sys.stdout.isatty() else result.output}\n")
    if talk.interrupted:
        return interrupted_code()
    return DONE if result.reason == "done" and not talk.unattended else FAILED


def _print_files(screen: Screen, kept: ChatFiles) -> None:
    for line in kept.files():
        screen.show_note(line)


def _exit_now(code: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
