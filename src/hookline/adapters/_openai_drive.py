"""One run of the OpenAI Agents SDK, from its options to its result, through the hooks of the whole run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
from agents import (
    Agent,
    ModelProvider,
    RunConfig,
    RunContextWrapper,
    RunResult,
    RunResultStreaming,
    RunState,
)

from hookline.adapters._openai_attached import Attached, present
from hookline.adapters._openai_items import input_of, spoken
from hookline.adapters._openai_models import TwinProvider, alike, twin_model
from hookline.adapters._openai_outputs import retyped, said_last
from hookline.adapters._openai_sessions import twin_session
from hookline.adapters._openai_sub_agents import end_early, settle
from hookline.adapters._openai_twins import current, twin
from hookline.calls import AgentCall
from hookline.errors import HookUsageError
from hookline.runtime import ForeignRun

__all__ = ["Input", "Start", "drive", "hooked_options", "stream_ended", "unhooked_stream"]

Input = str | list[Any] | RunState[Any]
Start = Callable[..., Awaitable[Any]]
Play = Callable[[Agent[Any], Input], Awaitable[str]]


async def drive(attached: Attached, agent: Agent[Any], given: Input, options: dict[str, Any], start: Start) -> Any:
    """Run an agent in the SDK, through the hooks of the whole run."""
    run, results = attached.run, list[Any]()
    options, owned = hooked_options(options)
    attached.config = options["run_config"]
    root = twin(agent)
    if isinstance(given, RunState):
        if not attached.nested:  # else it was restored along with that of the caller
            given = await _restored(root, given)
        attached.go_on(given)

    async def play(agent: Agent[Any], put: Input) -> str:
        try:
            token = present.set(attached)
            try:
                result = await start(agent, put, **options)
            finally:
                present.reset(token)
        except BaseException as error:
            end_early(run, error)
            await attached.rest()
            await settle(attached, "", error)
            raise
        results.append(result)
        attached.ended(result)
        output = said_last(result)
        await settle(attached, output)
        return output

    try:
        if AgentCall not in run.run.intercepted:
            await play(root, given)
        else:
            changed = await _led(run, root, given, results, play)
            attached.heed_stop()
            if changed is not None and results:
                results[-1].final_output = retyped(results[-1].last_agent, changed)
            elif changed is not None:
                result = _answered(root, given, options, retyped(root, changed))
                run.finish("done", changed)
                return result
    finally:
        if owned is not None:
            await owned.aclose()
    attached.heed_stop()
    return results[-1]


async def _led(
    run: ForeignRun,
    root: Agent[Any],
    given: Input,
    results: list[Any],
    play: Callable[[Agent[Any], Input], Awaitable[str]],
) -> str | None:
    """Lead a run through the hooks of `AgentCall`, as often as they continue it.

    Returns:
        What a hook made of its output.
    """
    known = [] if isinstance(given, RunState) else spoken(None, given, {})
    prompt = [message for message, _ in known]
    instructions = root.instructions if isinstance(root.instructions, str) else ""
    following: Input = given

    async def work(call: AgentCall) -> str:
        agent, put = root, following
        if call.input != prompt and put is given:
            put = input_of(call.input, known, None)[1]
        if call.instructions != instructions:
            agent = alike(root)
            agent.instructions = call.instructions
        return await play(agent, put)

    done = await run.lead_run(prompt, work, instructions=instructions)
    while done.continues and run.run.continues < run.run.agent.max_continues:
        run.run.continues += 1
        said = {"role": "user", "content": "\n\n".join(done.continues)}
        following = [*results[-1].to_input_list(), said]
        done = await run.lead_run(prompt, work, instructions=instructions)
    return done.output if done.changed else None


def hooked_options(options: dict[str, Any]) -> tuple[dict[str, Any], ModelProvider | None]:
    """The options of a run whose models and session are twins, and the provider that is to be closed after it."""
    given = options.get("run_config")
    ours = given is None or (isinstance(given, dict) and "model_provider" not in given)
    config = RunConfig() if given is None else RunConfig(**given) if isinstance(given, dict) else given
    provider = config.model_provider
    if not isinstance(provider, TwinProvider):
        config = alike(config)
        config.model_provider, config.model = TwinProvider(provider), twin_model(config.model)
    options = {**options, "run_config": config}
    if options.get("session") is not None:
        options["session"] = twin_session(options["session"])
    return options, provider if ours else None


async def stream_ended(result: RunResultStreaming) -> bool:
    """See to it that a streamed run is over, and raise what it raised.

    Returns:
        Whether it was not.
    """
    early, task = not result.is_complete, result.run_loop_task
    if early:
        result.cancel()
    if task is not None:
        with anyio.CancelScope(shield=True):  # it ends soon: who is interrupted here has cancelled it
            await asyncio.wait([task])
        early = early or task.cancelled()
    result._check_errors()  # type: ignore[no-untyped-call]  # too many turns fail the stream, not its task
    if result._stored_exception is not None:
        raise result._stored_exception
    return early or (result._cancel_mode != "none" and result.final_output is None and not result.interruptions)


def unhooked_stream() -> HookUsageError:
    """What is raised for a stream that no block ends, so that its hooks would never be called."""
    return HookUsageError(
        "`run_streamed` cannot end a run with its hooks, so that none would be called. "
        "Use `async with HooklineRunner(hooks).stream(agent, input) as result`."
    )


async def _restored(root: Agent[Any], state: RunState[Any]) -> RunState[Any]:
    """A state whose agents are twins: as it is, if it comes from a run with hooks in this process.

    Else the way leads over JSON, as it does for one that waited on another machine.
    """
    if current(state._current_agent) and current(state._starting_agent):
        return state
    kept = state.to_json(context_serializer=lambda _: {})
    found = await RunState.from_json(root, kept, context_deserializer=dict)
    if found._context is not None and state._context is not None:
        found._context.context = state._context.context
    return found


def _answered(agent: Agent[Any], given: Input, options: dict[str, Any], output: object) -> RunResult:
    """What a run gives for which a hook answered."""
    nothing: dict[str, Any] = {name: [] for name in _RESULTS}
    context = RunContextWrapper(options.get("context"))
    asked = given if not isinstance(given, RunState) else []
    return RunResult(input=asked, final_output=output, context_wrapper=context, _last_agent=agent, **nothing)


_RESULTS = (
    "new_items",
    "raw_responses",
    "input_guardrail_results",
    "output_guardrail_results",
    "tool_input_guardrail_results",
    "tool_output_guardrail_results",
)
