"""Run a LangGraph graph as an operation, through the hooks of `AgentCall`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables.config import ensure_config, var_child_runnable_config
from langgraph.errors import GraphInterrupt
from langgraph.pregel import Pregel
from langgraph.types import Command, GraphOutput

from hookline.adapters._attaching import needs_operation, operations_are_watched
from hookline.adapters._conversion import split_input
from hookline.adapters.langchain._conversion import (
    from_langchain_message,
    messages_in,
    read_decisions,
    to_langchain_messages,
    to_pending_tools,
)
from hookline.adapters.langchain._run_binding import (
    DRIVES,
    LangChainBinding,
    current_binding,
    identify_as_local,
    wait_for_graph,
)
from hookline.calls import AgentCall
from hookline.errors import RunStopped
from hookline.hooks import AnyHook
from hookline.runtime import AdapterRun, Reject

__all__ = ["GraphRunner"]

OPERATION_KEY = "hookline_operation_id"
"""Key in the metadata of a checkpoint for the operation whose run wrote it."""

CHECKPOINTER_KEY, RESUMING_KEY = "__pregel_checkpointer", "__pregel_resuming"
"""Config keys of a node that is a graph: the outer graph's checkpointer, and whether the outer graph resumes."""

SCRATCHPAD_KEY, RESUME_MAP_KEY = "__pregel_scratchpad", "__pregel_resume_map"
"""Config keys under which LangGraph keeps the value of a `Command(resume=...)`, or several values by interrupt."""

RunGraph = Callable[[Any, Any], Awaitable[Any]]
"""Runs the graph with an input and a config; returns its result, or `None` if that is not known."""

GetState = Callable[[Any], Awaitable[Any]]
"""Reads the state of the graph by its config."""


@dataclass(frozen=True, kw_only=True)
class GraphRunner:
    """Runs a graph with hooks, as operations.

    Attributes:
        agent: The graph, without hooks.
        hooks: The hooks of each run.
        agent_id: The name of the agent in events.
        options: Other options of `AdapterRun`.
    """

    agent: Pregel[Any, Any, Any, Any]
    hooks: list[AnyHook]
    agent_id: str
    options: Mapping[str, Any]

    @cached_property
    def _needs_operation(self) -> bool:
        return needs_operation(self.hooks, self.options)

    def opens_operation(self, given: Any, config: Any) -> bool:
        """Return whether a run is an operation; one without hooks is only if others could notice it.

        Args:
            given: The input of the graph.
            config: The config of the run.
        """
        return (
            self._needs_operation
            or operations_are_watched()
            or current_binding.get() is not None
            or _resume_command(given, _configurable(config)) is not None
        )

    async def run(self, given: Any, config: Any, run_graph: RunGraph, get_state: GetState) -> Any:
        """Run the graph once as an operation.

        Args:
            given: The input of the graph.
            config: The config of the run.
            run_graph: Runs the graph.
            get_state: Reads the graph's state.

        Raises:
            RunStopped: If a hook, a person or `interrupt` ended the run.
            Exception: What the graph raises.
        """
        checkpointer, around = self.agent.checkpointer, _configurable(config)
        is_stored = checkpointer not in (None, False) or (checkpointer is None and bool(around.get(CHECKPOINTER_KEY)))
        resume = _resume_command(given, around) if is_stored else None
        waiting = await get_state(ensure_config() if config is None else config) if resume is not None else None
        if waiting is not None and resume is not given and not waiting.interrupts:
            waiting = None  # the outer graph resumes another node
        options = dict(self.options)
        if waiting is not None and options.get("operation_id") is None:
            options["operation_id"] = (waiting.metadata or {}).get(OPERATION_KEY)
        outer = current_binding.get()
        parent = outer.run if outer is not None and outer.loop is asyncio.get_running_loop() else None
        async with AdapterRun(self.hooks, DRIVES, agent_id=self.agent_id, parent=parent, **options) as run:
            binding = LangChainBinding(run)
            if waiting is not None and resume is not None and _report_decisions(run, resume, waiting):
                # Otherwise the outer graph's next interrupt would consume it.
                if resume is not given and SCRATCHPAD_KEY in around:
                    around[SCRATCHPAD_KEY].get_null_resume(consume=True)
                run.raise_if_stopped()
            if is_stored:
                config = ensure_config(config)
                config["metadata"] = {**config.get("metadata", {}), OPERATION_KEY: run.operation_id}
            read = get_state if is_stored else None
            run_operation = _run_with_hooks if AgentCall in run.run.intercepted else _run_once
            result = await run_operation(binding, given, config, run_graph, read)
            run.raise_if_stopped()
            return result
        raise RunStopped("The run was interrupted.")


def _configurable(config: Any) -> Mapping[str, Any]:
    """Return the `configurable` of a run as `ensure_config` does, in a tenth of its time."""
    found = (config or {}).get("configurable") or (var_child_runnable_config.get() or {}).get("configurable")
    return found or {}


def _resume_command(given: Any, around: Mapping[str, Any]) -> Command[Any] | None:
    """Return the command that resumes the graph, also for a graph that is a node of another; `None` if there is none.

    Args:
        given: The input of the graph.
        around: The `configurable` of the run's config.
    """
    if isinstance(given, Command):
        return given if given.resume is not None else None
    if not around.get(CHECKPOINTER_KEY) or not around.get(RESUMING_KEY):
        return None
    resume = around.get(RESUME_MAP_KEY)
    if not resume and around.get(SCRATCHPAD_KEY) is not None:
        resume = around[SCRATCHPAD_KEY].get_null_resume(consume=False)
    return Command(resume=resume)


def _report_decisions(run: AdapterRun, resume: Command[Any], waiting: Any) -> bool:
    """Report a person's decisions to hooks; return whether one of them ends the run."""
    decisions = read_decisions(
        resume, to_pending_tools(waiting.interrupts, messages_in(waiting.values), identify_as_local)
    )
    run.begin_step()
    run.step.type = "call_tool"
    run.decided(decisions)
    ends = any(isinstance(each, Reject) and not each.and_continue for each in decisions)
    if ends:
        run.finish("interrupted")
    return ends


async def _run_once(
    binding: LangChainBinding, given: Any, config: Any, run_graph: RunGraph, get_state: GetState | None
) -> Any:
    """Run the graph once and record how the run ended."""
    run = binding.run
    try:
        token = current_binding.set(binding)  # the middleware finds it there
        try:
            result = await wait_for_graph(run_graph(given, config))
        finally:
            current_binding.reset(token)
    except GraphInterrupt as error:  # raised by a graph that is a node: the outer graph waits for the person
        state = (await get_state(config)).values if get_state is not None else None
        _pause_run(binding, error.args[0], state)
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
        _pause_run(binding, interrupts, state)
    elif run.denied is not None:
        run.finish("interrupted")
    else:
        run.finish("done", binding.output_text(_state_of(result)))
    return result


def _pause_run(binding: LangChainBinding, interrupts: Any, state: Any) -> None:
    run = binding.run
    pending = [call for _, call in to_pending_tools(interrupts, messages_in(state), binding.identify)]
    run.pause([call for call in pending if call.tool_call_id not in run.step.asked])
    run.end_step(should_continue=False)


async def _run_with_hooks(
    binding: LangChainBinding, given: Any, config: Any, run_graph: RunGraph, get_state: GetState | None
) -> Any:
    """Run the graph through the hooks of `AgentCall`, again for each time that they continue it."""
    run, results = binding.run, list[Any]()
    asked = [] if isinstance(given, Command) else messages_in(given)
    prompt = [from_langchain_message(each, identify_as_local) for each in asked]
    following = given

    async def work(call: AgentCall) -> str:
        final = following
        own, added = split_input(call.input)
        if own != prompt and following is given:
            final = {**given, "messages": to_langchain_messages(own, prompt, asked, {})}
        if added:
            final = {**final, "messages": [*messages_in(final), HumanMessage(added)]}
        binding.instructions = call.instructions or None
        results.append(await _run_once(binding, final, config, run_graph, get_state))
        return binding.output_text(_state_of(results[-1]))

    done = await run.lead_run(prompt, work)
    while done.continues and run.run.continues < run.run.agent.max_continues:
        if done.ran and results[-1] is None:
            break  # the result of a stream is not known
        run.run.continues += 1
        before = messages_in(_state_of(results[-1])) if done.ran else [*messages_in(following), AIMessage(done.output)]
        following = {"messages": [*before, HumanMessage("\n\n".join(done.continues))]}
        done = await run.lead_run(prompt, work)
    run.raise_if_stopped()
    if not done.ran:
        run.finish("done", done.output)
        return {"messages": [*messages_in(following), AIMessage(done.output)]}
    result, values = results[-1], _state_of(results[-1])
    if not done.changed or not isinstance(values, Mapping):
        return result
    *before, last = messages_in(values)
    changed = {**values, "messages": [*before, last.model_copy(update={"content": done.output})]}
    return replace(result, value=changed) if isinstance(result, GraphOutput) else changed


def _state_of(result: Any) -> Any:
    """Return the state in a graph's result, of either output version."""
    return result.value if isinstance(result, GraphOutput) else result
