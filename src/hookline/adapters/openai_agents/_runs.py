"""Run an agent of the OpenAI Agents SDK, or stream it, through the hooks of `AgentCall`."""

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

from hookline.adapters._conversion import split_input
from hookline.adapters.openai_agents._conversion import from_items, output_text, parse_output, to_items
from hookline.adapters.openai_agents._run_binding import OpenAIBinding, current_binding
from hookline.adapters.openai_agents._sub_agents import end_handoffs, record_early_end
from hookline.calls import AgentCall
from hookline.errors import HookUsageError

__all__ = ["Input", "StreamFailedError", "end_stream", "run_agent", "stream_agent"]

Input = str | list[Any] | RunState[Any]
StartRun = Callable[[Input], Awaitable[Any]]


class StreamFailedError(Exception):
    """The consumer of a stream will see an error, although the stream's task ends without one."""


# Not `async def`: each frame that waits is entered anew whenever the SDK resumes the run.
def run_agent(
    binding: OpenAIBinding, agent: Agent[Any], given: Input, options: Mapping[str, Any], start: StartRun
) -> Awaitable[Any]:
    """Run an agent in the SDK through the hooks of the run.

    Args:
        binding: The binding of the run.
        agent: The agent.
        given: Its input.
        options: The options of the run.
        start: Runs the agent in the SDK, with the input that hooks left.
    """
    binding.session, binding.config = options.get("session"), options.get("run_config")
    if isinstance(given, RunState):
        binding.resume(given)
    if AgentCall in binding.run.run.intercepted:
        return _run_through_hooks(binding, agent, given, options, start)
    return _run_once(binding, given, start)


async def _run_once(binding: OpenAIBinding, final_input: Input, start: StartRun, *, may_continue: bool = False) -> Any:
    """Run an agent in the SDK once.

    Args:
        binding: The binding of the run.
        final_input: The input of the agent.
        start: Runs the agent in the SDK.
        may_continue: Whether the run goes on after this.
    """
    run = binding.run
    try:
        token = current_binding.set(binding)  # the patched functions find it there
        try:
            result = await start(final_input)
        finally:
            current_binding.reset(token)
        binding.record_end(result)
        if binding.handoffs:
            await end_handoffs(binding, output_text(result))
        if not may_continue:
            binding.raise_if_stopped()
        return result
    except BaseException as error:
        failure = error.__cause__ if isinstance(error, StreamFailedError) and error.__cause__ is not None else error
        record_early_end(run, failure)  # the binding's may be that of an agent which took over
        await binding.wait_for_tasks()
        await end_handoffs(binding, "", failure)
        raise
    finally:
        if not may_continue:
            binding.end()


async def _run_through_hooks(
    binding: OpenAIBinding, agent: Agent[Any], given: Input, options: Mapping[str, Any], start: StartRun
) -> Any:
    results: list[Any] = []

    async def run_once(final_input: Input) -> str:
        results.append(await _run_once(binding, final_input, start, may_continue=True))
        return output_text(results[-1])

    try:
        changed = await _run_with_hooks(binding, agent, given, results, run_once)
        binding.raise_if_stopped()
        if changed is not None and results:
            results[-1].final_output = parse_output(results[-1].last_agent, changed)
        elif changed is not None:
            result = _result_from_hook(agent, given, options, parse_output(agent, changed))
            binding.run.finish("done", changed)
            return result
        return results[-1]
    finally:
        binding.end()


async def stream_agent(
    binding: OpenAIBinding,
    agent: Agent[Any],
    given: Input,
    options: Mapping[str, Any],
    result: RunResultStreaming,
    start: Callable[..., Awaitable[Any]],
) -> None:
    """Run an agent in the task of a stream of the SDK, through the hooks of the run.

    Args:
        binding: The binding of the run.
        agent: The agent.
        given: Its input.
        options: The options of the run.
        result: The stream.
        start: The SDK's function that runs the agent; another input is passed by name.

    Raises:
        StreamFailedError: If the SDK raises an error only in the consumer of the stream.
    """
    begun = False

    async def stream(final_input: Input) -> RunResultStreaming:
        nonlocal begun
        if begun:
            raise HookUsageError("A hook returned Continue, but a streamed run cannot continue. Use `run`.")
        begun = True
        await (start() if final_input is given else start(starting_input=final_input))
        failure = _stream_failure(result)
        if failure is not None:
            raise StreamFailedError from failure
        return result

    with binding.track_task():
        found = await run_agent(binding, agent, given, options, stream)
        if found is not result:  # a hook answered in place of the run
            result.final_output = found.final_output
        elif result._cancel_mode != "none" and result.final_output is None and not result.interruptions:
            binding.run.finish("interrupted")


def end_stream(result: RunResultStreaming) -> None:
    """Tell the consumer of a stream that the stream has ended, if the SDK has not."""
    if not result.is_complete:
        result.is_complete = True
        result._event_queue.put_nowait(QueueCompleteSentinel())


def _stream_failure(result: RunResultStreaming) -> Exception | None:
    """Return the error that the SDK will raise in the consumer of a stream whose task ended normally."""
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


async def _run_with_hooks(
    binding: OpenAIBinding,
    root: Agent[Any],
    given: Input,
    results: list[Any],
    run_once: Callable[[Input], Awaitable[str]],
) -> str | None:
    """Run the agent through the hooks of `AgentCall`, again for each time that they continue it.

    Returns:
        The output that a hook set, if one did.
    """
    run = binding.run
    known = [] if isinstance(given, RunState) else from_items(None, given, {})
    prompt = [message for message, _ in known]
    instructions = root.instructions if isinstance(root.instructions, str) else ""
    following: Input = given

    async def work(call: AgentCall) -> str:
        final_input = following
        asked, added = split_input(call.input)
        if asked != prompt and final_input is given:
            final_input = to_items(asked, known, None)[1]
        if added:
            final_input = [*_input_items(final_input), {"role": "user", "content": added}]
        if call.instructions != instructions:
            binding.instruction_override = root, call.instructions
        return await run_once(final_input)

    done = await run.lead_run(prompt, work, instructions=instructions)
    while done.continues and run.run.continues < run.run.agent.max_continues:
        run.run.continues += 1
        answered = [*_input_items(following), {"role": "assistant", "content": done.output}]  # by a hook, with no run
        before = results[-1].to_input_list() if done.ran else answered
        following = [*before, {"role": "user", "content": "\n\n".join(done.continues)}]
        done = await run.lead_run(prompt, work, instructions=instructions)
    return done.output if done.changed else None


def _input_items(given: Input) -> list[Any]:
    """Return the items of a run's input; a state brings its own conversation along."""
    if isinstance(given, RunState):
        return []
    return [{"role": "user", "content": given}] if isinstance(given, str) else given


def _result_from_hook(agent: Agent[Any], given: Input, options: Mapping[str, Any], output: object) -> RunResult:
    """Build the result of a run that a hook answered."""
    nothing: dict[str, Any] = {name: [] for name in _EMPTY_RESULT_FIELDS}
    context = RunContextWrapper(options.get("context"))
    asked = given if not isinstance(given, RunState) else []
    return RunResult(input=asked, final_output=output, context_wrapper=context, _last_agent=agent, **nothing)


_EMPTY_RESULT_FIELDS = (
    "new_items",
    "raw_responses",
    "input_guardrail_results",
    "output_guardrail_results",
    "tool_input_guardrail_results",
    "tool_output_guardrail_results",
)
