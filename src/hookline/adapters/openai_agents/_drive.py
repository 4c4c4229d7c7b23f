"""One run of the OpenAI Agents SDK, from its input to its result, through the hooks of the whole run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from agents import (
    Agent,
    InputGuardrailTripwireTriggered,
    MaxTurnsExceeded,
    RunContextWrapper,
    RunResult,
    RunResultStreaming,
    RunState,
)
from agents.run_internal.run_steps import QueueCompleteSentinel

from hookline.adapters.openai_agents._attached import Attached
from hookline.adapters.openai_agents._items import input_of, retyped, said_last, spoken
from hookline.adapters.openai_agents._sub_agents import end_early, settle
from hookline.calls import AgentCall
from hookline.errors import HookUsageError

__all__ = ["Input", "StreamFailed", "drive", "drive_stream", "end_stream"]

Input = str | list[Any] | RunState[Any]
Start = Callable[[Input], Awaitable[Any]]


class StreamFailed(Exception):
    """A stream ends by what its consumer is told alone; its task ends without an error."""


async def drive(attached: Attached, agent: Agent[Any], given: Input, options: Mapping[str, Any], start: Start) -> Any:
    """Run an agent in the SDK, through the hooks of the whole run.

    Args:
        attached: Stands between that run and its hooks.
        agent: The agent.
        given: Its input.
        options: Those of the run.
        start: Runs it in the SDK, with the input that hooks have left.
    """
    run, results = attached.run, list[Any]()
    attached.session, attached.config = options.get("session"), options.get("run_config")
    if isinstance(given, RunState):
        attached.go_on(given)

    async def play(put: Input) -> str:
        try:
            with attached.standing():
                result = await start(put)
        except BaseException as error:
            failure = error.__cause__ if isinstance(error, StreamFailed) and error.__cause__ is not None else error
            end_early(run, failure)
            await attached.rest()
            await settle(attached, "", failure)
            raise
        results.append(result)
        attached.ended(result)
        output = said_last(result)
        await settle(attached, output)
        return output

    try:
        if AgentCall not in run.run.intercepted:
            await play(given)
        else:
            changed = await _led(attached, agent, given, results, play)
            attached.heed_stop()
            if changed is not None and results:
                results[-1].final_output = retyped(results[-1].last_agent, changed)
            elif changed is not None:
                result = _answered(agent, given, options, retyped(agent, changed))
                run.finish("done", changed)
                return result
        attached.heed_stop()
        return results[-1]
    finally:
        attached.over = True


async def drive_stream(
    attached: Attached,
    agent: Agent[Any],
    given: Input,
    options: Mapping[str, Any],
    result: RunResultStreaming,
    start: Callable[..., Awaitable[Any]],
) -> None:
    """Run an agent in the task of a stream of the SDK, through the hooks of the whole run.

    Args:
        attached: Stands between that run and its hooks.
        agent: The agent.
        given: Its input.
        options: Those of the run.
        result: The stream.
        start: The SDK's function that runs it; it takes another input by name.

    Raises:
        StreamFailed: If the SDK tells an error to the consumer of the stream alone.
    """
    begun = False

    async def stream(put: Input) -> RunResultStreaming:
        nonlocal begun
        if begun:
            raise HookUsageError("A hook lets the run continue, and a stream has one end; use `run`.")
        begun = True
        await (start() if put is given else start(starting_input=put))
        failure = _failure_of(result)
        if failure is not None:
            raise StreamFailed from failure
        return result

    with attached.busy():
        found = await drive(attached, agent, given, options, stream)
        if found is not result:  # a hook answered in place of the run
            result.final_output = found.final_output
        elif result._cancel_mode != "none" and result.final_output is None and not result.interruptions:
            attached.run.finish("interrupted")


def end_stream(result: RunResultStreaming) -> None:
    """Tell the consumer of a stream that it is over, where the SDK has not."""
    if not result.is_complete:
        result.is_complete = True
        result._event_queue.put_nowait(QueueCompleteSentinel())


def _failure_of(result: RunResultStreaming) -> Exception | None:
    """What the SDK will raise in the consumer of a stream whose task has ended well."""
    if result.max_turns is not None and result.current_turn > result.max_turns and not result._max_turns_handled:
        return MaxTurnsExceeded(f"Max turns ({result.max_turns}) exceeded")
    if isinstance(result._stored_exception, Exception):
        return result._stored_exception
    if result._triggered_input_guardrail_result is not None:
        return InputGuardrailTripwireTriggered(result._triggered_input_guardrail_result)
    task: asyncio.Task[Any] | None = result._input_guardrails_task
    if task is None or not task.done() or task.cancelled():
        return None
    error = task.exception()
    return error if isinstance(error, Exception) else None


async def _led(
    attached: Attached, root: Agent[Any], given: Input, results: list[Any], play: Callable[[Input], Awaitable[str]]
) -> str | None:
    """Lead a run through the hooks of `AgentCall`, as often as they continue it.

    Returns:
        What a hook made of its output.
    """
    run = attached.run
    known = [] if isinstance(given, RunState) else spoken(None, given, {})
    prompt = [message for message, _ in known]
    instructions = root.instructions if isinstance(root.instructions, str) else ""
    following: Input = given

    async def work(call: AgentCall) -> str:
        put = following
        if call.input != prompt and put is given:
            put = input_of(call.input, known, None)[1]
        if call.instructions != instructions:
            attached.reworded = root, call.instructions
        return await play(put)

    done = await run.lead_run(prompt, work, instructions=instructions)
    while done.continues and run.run.continues < run.run.agent.max_continues:
        run.run.continues += 1
        said = {"role": "user", "content": "\n\n".join(done.continues)}
        following = [*results[-1].to_input_list(), said]
        done = await run.lead_run(prompt, work, instructions=instructions)
    return done.output if done.changed else None


def _answered(agent: Agent[Any], given: Input, options: Mapping[str, Any], output: object) -> RunResult:
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
