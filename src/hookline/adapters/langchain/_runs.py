"""Lead one run of a LangGraph graph through the hooks of an operation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from dataclasses import replace as changed_output
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables.config import ensure_config, var_child_runnable_config
from langgraph.errors import GraphInterrupt
from langgraph.pregel import Pregel
from langgraph.types import Command, GraphOutput

from hookline.adapters.langchain._attached import DRIVES, Attached, RunStopped, local, present, whole
from hookline.adapters.langchain._messages import decisions_of, message_of, pending_of, put, shown
from hookline.calls import AgentCall
from hookline.hooks import AnyHook
from hookline.runtime import AdapterRun, Reject

__all__ = ["Driver"]

OPERATION = "hookline_operation_id"
"""Key in the metadata of a checkpoint: the operation whose run made it."""

LENT, RESUMING = "__pregel_checkpointer", "__pregel_resuming"
"""Keys in the config of a node that is a graph: the checkpointer of the graph around it, and whether that resumes."""

SCRATCHPAD, RESUME_MAP = "__pregel_scratchpad", "__pregel_resume_map"
"""Keys in the same config: where LangGraph keeps the value of a `Command(resume=...)`, or several by interrupt."""

Play = Callable[[Any, Any], Awaitable[Any]]
"""Runs the graph with an input and a config; what it gives, or `None` where nobody knows."""

GetState = Callable[[Any], Awaitable[Any]]
"""Reads the state of the graph by its config."""


@dataclass(frozen=True, kw_only=True)
class Driver:
    """Leads runs of a graph, each as an operation of its own.

    Attributes:
        agent: The graph, without hooks.
        hooks: Hooks of each run.
        agent_id: The name of the agent in events.
        options: What else a `AdapterRun` takes.
    """

    agent: Pregel[Any, Any, Any, Any]
    hooks: list[AnyHook]
    agent_id: str
    options: Mapping[str, Any]

    async def drive(self, given: Any, config: Any, play: Play, get_state: GetState) -> Any:
        """Lead one run.

        Args:
            given: Input of the graph.
            config: Its config.
            play: Runs the graph.
            get_state: Reads its state.

        Raises:
            RunStopped: If somebody has interrupted it.
            Exception: What the graph raises.
        """
        checkpointer, around = self.agent.checkpointer, _configurable(config)
        kept = checkpointer not in (None, False) or (checkpointer is None and bool(around.get(LENT)))
        answer = _answer(given, around) if kept else None
        waiting = await get_state(ensure_config() if config is None else config) if answer is not None else None
        if waiting is not None and answer is not given and not waiting.interrupts:
            waiting = None  # another node of the graph around it goes on
        options = dict(self.options)
        if waiting is not None and options.get("operation_id") is None:
            options["operation_id"] = (waiting.metadata or {}).get(OPERATION)
        outer = present.get()
        parent = outer.run if outer is not None and outer.loop is asyncio.get_running_loop() else None
        async with AdapterRun(self.hooks, DRIVES, agent_id=self.agent_id, parent=parent, **options) as run:
            attached = Attached(run)
            if waiting is not None and answer is not None and _ends(run, answer, waiting):
                if answer is not given and SCRATCHPAD in around:  # else the next interrupt of the graph around takes it
                    around[SCRATCHPAD].get_null_resume(consume=True)
                return waiting.values
            if kept:
                config = ensure_config(config)
                config["metadata"] = {**config.get("metadata", {}), OPERATION: run.operation_id}
            read = get_state if kept else None
            if AgentCall in run.run.intercepted:
                return await _lead(attached, given, config, play, read)
            return await _play(attached, given, config, play, read)
        raise RunStopped("The run was interrupted.")


def _configurable(config: Any) -> Mapping[str, Any]:
    """The `configurable` of a run, as `ensure_config` finds it, at a tenth of what that costs."""
    found = (config or {}).get("configurable") or (var_child_runnable_config.get() or {}).get("configurable")
    return found or {}


def _answer(given: Any, around: Mapping[str, Any]) -> Command[Any] | None:
    """The command with a person's decisions that the graph goes on with, be it a node of another one; `None` if none.

    Args:
        given: Input of the graph.
        around: The `configurable` of its config.
    """
    if isinstance(given, Command):
        return given if given.resume is not None else None
    if not around.get(LENT) or not around.get(RESUMING):
        return None
    resume = around.get(RESUME_MAP)
    if not resume and around.get(SCRATCHPAD) is not None:
        resume = around[SCRATCHPAD].get_null_resume(consume=False)
    return Command(resume=resume)


def _ends(run: AdapterRun, answer: Command[Any], waiting: Any) -> bool:
    """Tell what a person has decided, and whether that ends the run."""
    decisions = decisions_of(answer, pending_of(waiting.interrupts, shown(waiting.values), local))
    run.begin_step()
    run.step.type = "call_tool"
    run.decided(decisions)
    ends = any(isinstance(each, Reject) and not each.and_continue for each in decisions)
    if ends:
        run.finish("interrupted")
    return ends


async def _play(attached: Attached, given: Any, config: Any, play: Play, get_state: GetState | None) -> Any:
    """Run the graph once, and say what the run came to."""
    run = attached.run
    try:
        with attached.standing():
            result = await whole(play(given, config))
    except GraphInterrupt as error:  # raised by a node that is a graph: the one around it waits for the person
        state = (await get_state(config)).values if get_state is not None else None
        _pause(attached, error.args[0], state)
        raise
    state = result
    interrupts: Any = ()
    if isinstance(result, GraphOutput):
        interrupts, state = result.interrupts, result.value
    elif isinstance(result, Mapping):
        interrupts = result.get("__interrupt__", ())
    elif get_state is not None:
        found = await get_state(config)
        interrupts, state = found.interrupts, found.values
    if interrupts:
        _pause(attached, interrupts, state)
    elif run.denied is not None:
        run.finish("interrupted")
    else:
        run.finish("done", attached.said(_values(result)))
    return result


def _pause(attached: Attached, interrupts: Any, state: Any) -> None:
    run = attached.run
    pending = [call for _, call in pending_of(interrupts, shown(state), attached.named)]
    run.pause([call for call in pending if call.tool_call_id not in run.step.asked])
    run.end_step(should_continue=False)


async def _lead(attached: Attached, given: Any, config: Any, play: Play, get_state: GetState | None) -> Any:
    """Run the graph through the hooks of `AgentCall`, as often as they continue it."""
    run, results = attached.run, list[Any]()
    asked = [] if isinstance(given, Command) else shown(given)
    prompt = [message_of(each, local) for each in asked]
    following = given

    async def work(call: AgentCall) -> str:
        final = following
        if call.input != prompt and following is given:
            left = list(zip(prompt, asked, strict=True))
            changed = [next((old for each, old in left if each == one), None) or put(one, {}) for one in call.input]
            final = {**given, "messages": changed}
        attached.instructions = call.instructions or None
        results.append(await _play(attached, final, config, play, get_state))
        return attached.said(_values(results[-1]))

    done = await run.lead_run(prompt, work)
    while done.continues and results[-1] is not None and run.run.continues < run.run.agent.max_continues:
        run.run.continues += 1
        following = {"messages": [*shown(_values(results[-1])), HumanMessage("\n\n".join(done.continues))]}
        done = await run.lead_run(prompt, work)
    if done.denied is not None:
        return {"messages": asked}
    if not results:
        run.finish("done", done.output)
        return {"messages": [*asked, AIMessage(done.output)]}
    result, values = results[-1], _values(results[-1])
    if not done.changed or not isinstance(values, Mapping):
        return result
    *before, last = shown(values)
    changed = {**values, "messages": [*before, last.model_copy(update={"content": done.output})]}
    return changed_output(result, value=changed) if isinstance(result, GraphOutput) else changed


def _values(result: Any) -> Any:
    """The state that a graph gave, in whichever form."""
    return result.value if isinstance(result, GraphOutput) else result
