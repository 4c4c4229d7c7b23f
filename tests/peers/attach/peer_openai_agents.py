"""Attach hookline to the tests of OpenAI Agents: `Runner` runs each agent through a `HooklineRunner`."""

from __future__ import annotations

from typing import Any

from agents import Runner
from agents.run import AgentRunner, get_default_agent_runner
from peer_hooks import hooks_that_do_nothing

from hookline.adapters.openai_agents import HooklineRunner
from hookline.adapters.openai_agents._run_binding import present_binding

run, run_sync, run_streamed = (vars(Runner)[name].__func__ for name in ("run", "run_sync", "run_streamed"))


def _attached() -> HooklineRunner | None:
    """A runner with hooks; none inside of a run that has them, nor where a test has put in a runner of its own."""
    bare = present_binding() is not None or type(get_default_agent_runner()) is not AgentRunner
    return None if bare else HooklineRunner(hooks_that_do_nothing())


async def _run(cls: type[Runner], *given: Any, **options: Any) -> Any:
    runner = _attached()
    return await (run(cls, *given, **options) if runner is None else runner.run(*given, **options))


def _run_sync(cls: type[Runner], *given: Any, **options: Any) -> Any:
    runner = _attached()
    return run_sync(cls, *given, **options) if runner is None else runner.run_sync(*given, **options)


def _run_streamed(cls: type[Runner], *given: Any, **options: Any) -> Any:
    runner = _attached()
    return run_streamed(cls, *given, **options) if runner is None else runner.run_streamed(*given, **options)


for name, function in (("run", _run), ("run_sync", _run_sync), ("run_streamed", _run_streamed)):
    setattr(Runner, name, classmethod(function))
