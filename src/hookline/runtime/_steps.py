"""One step of a run: ask the model, then run the tools that it asked for, between the events of the step.

Tool calls, sub-agent calls and compaction have modules of their own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import force_setattr

from hookline._readonly import NO_LIST, ReadOnlyDict
from hookline.calls import (
    GUIDES_LEFT,
    Message,
    ModelCall,
    ModelResponse,
    StepCall,
    StepResult,
    ToolCall,
    ToolRequest,
    Usage,
    hook_message,
)
from hookline.errors import HookDenied
from hookline.events import CompletionReason
from hookline.interceptors import Traversal, cut_answer
from hookline.phases import Phase
from hookline.runtime._agent import Agent
from hookline.runtime._approvals import ask_person, note_decisions, resume_step
from hookline.runtime._compaction import compact_if_needed
from hookline.runtime._model_retry import RETRY, ModelRetry, copy_lists, respond
from hookline.runtime._persistence import checkpoint
from hookline.runtime._phase_moves import move_to, move_to_model
from hookline.runtime._run import Run, after_step, before_step
from hookline.runtime._seams import RunControl, instrument, instrument_step, run_through_chain
from hookline.runtime._state import Decision, Step
from hookline.runtime._sub_agents import SubAgentJob
from hookline.runtime._tool_calls import (
    INTERRUPTED,
    Job,
    freeze_args,
    make_call,
    run_overlapping,
    to_pending,
    tool_job,
)

__all__ = ["lead_model_call", "lead_step", "limit_reached", "make_job", "model_step", "run_jobs", "run_step"]

NO_USAGE = Usage()
LONGEST_CALL_ID = 256
"""Characters of a model's id of a call."""


async def run_step(run: Run, decisions: Sequence[Decision]) -> CompletionReason | None:
    """Run one step, between its two events.

    Returns:
        Why the run ends here, or `None` if another step follows.
    """
    step = before_step(run)
    reason: CompletionReason | None = "error"
    try:
        await run.take_turn()
        if decisions:
            note_decisions(run, step, decisions)
            await checkpoint(run)
        resume_or_ask = partial(resume_step, run, step, decisions) if decisions else partial(model_step, run, step)
        if StepCall in run.intercepted:
            work = lead_step(run, step, resume_or_ask)
        else:
            step.entered = True
            work = resume_or_ask()
        reason = await (instrument_step(run, step.index, work) if StepCall in run.enclosing else work) or limit_reached(
            run
        )
    finally:
        after_step(run, step, should_continue=reason is None)
    run.step_index = None
    if reason is None and run.interrupted:  # by an observer of that event
        reason = "interrupted"
    return reason


async def lead_step(
    run: Run, step: Step, work: Callable[[], Coroutine[Any, Any, CompletionReason | None]], *, pinned: bool = False
) -> CompletionReason | None:
    """Run a step through the interceptors of its `StepCall`.

    Args:
        run: The run.
        step: The step.
        work: Runs the step itself.
        pinned: Whether the step began in a process that died, so that no interceptor rewrites it.
    """
    reason: CompletionReason | None = None

    async def terminal(call: StepCall) -> StepResult:
        nonlocal reason
        step.entered = True
        reason = await work() or limit_reached(run)
        return StepResult(should_continue=reason is None, content=step.content)

    call = StepCall(step_index=step.index, **run.ids)
    traversal = await run_through_chain(run, call, terminal, RunControl(run, run.watch, pinned=pinned))
    if traversal.denied is not None:
        run.denied = traversal.denied
        run.close_step(f"Not run, because a hook denied the step: {traversal.denied.reason}")
        if traversal.reached:
            run.withhold(traversal.denied)
            step.content = ""
        if run.text is not None:
            run.text.withheld(StepCall)
        return "interrupted"
    result: StepResult = traversal.result
    if not traversal.reached:
        run.close_step("Not run, because a hook answered the step.")
        run.messages.append(Message(role="assistant", content=result.content))
        run.last_content = step.content = result.content
        if run.text is not None:
            await run.text.passed(StepCall, result.content)
        return None if result.should_continue else "done"
    if result.content != step.content:
        run.restate(result.content)
        step.content = result.content
    if run.text is not None:
        await run.text.passed(StepCall, result.content)
    if reason == "done" and result.should_continue:
        return None
    return "interrupted" if reason is None and not result.should_continue else reason


async def model_step(run: Run, step: Step) -> CompletionReason | None:
    """Ask the model, and run the calls that it asks for."""
    if run.agent.compaction is not None:
        await compact_if_needed(run, step, run.agent.compaction)
    if run.phases is not None:
        await move_to_model(run)
    response = await ask_model(run, step)
    if response is None:
        return "interrupted"
    if run.journal.durable:
        response = run.journal.storable(response)
    if run.phases is not None:
        await move_to(run, Phase.ANALYZING_LLM_RESPONSE)
    run.count(step, response)
    step.calling = assign_call_ids(response.tool_calls, step.index)
    run.messages.append(
        Message(role="assistant", content=response.content, tool_calls=step.calling, details=response.details)
    )
    if not step.calling:
        return "done"
    step.type = "call_tool"
    run.open_calls = step.calling
    jobs: list[Job] = []
    for calling in step.calling:
        work = await make_job(run, step, calling)
        if work is not None:
            jobs.append(work)
    return await run_jobs(run, step, jobs)


async def run_jobs(run: Run, step: Step, jobs: list[Job]) -> CompletionReason | None:
    """Run the calls of a step, then continue, pause or end the run."""
    await run_overlapping(run, jobs)
    if step.ran and run.phases is not None:
        await move_to(run, Phase.PROCESSING_TOOL_RESULT)
    if run.denied is not None or not step.asked:
        run.close_step(INTERRUPTED if run.denied is None else "Not run, because a hook stopped the run.")
        return None if run.denied is None else "interrupted"
    return await ask_person(run, step)


async def ask_model(run: Run, step: Step) -> ModelResponse | None:
    """Ask the agent's model; `None` if a hook denied the call, or the run is interrupted: both end the run."""
    model: Any = run.agent.model
    retry = run.agent.retry
    if run.journal.durable:  # else not even awaited: a run asks for each model call
        await checkpoint(run)
        if run.interrupted:  # by somebody in another process, which the store has told with the write
            return None
    if ModelCall not in run.intercepted:
        run.llm_calls += 1
        if run.journal.durable:
            run.journal.begin_model_call(step.index, model)
        if ModelCall in run.enclosing:
            call = model_call(run, step)
            answer = instrument(run, call, respond(model, partial(copy_lists, call), retry, run.text))
        else:
            answer = respond(model, partial(model_call, run, step, own_lists=True), retry, run.text)
        try:
            response = await answer
        except BaseException as error:
            run.journal.end_model_call(NO_USAGE, type(error).__name__)
            raise
        if run.journal.durable:
            run.journal.end_model_call(response.usage)
        if run.text is not None:
            await run.text.answered(response.content)
        return response

    def ask(final: ModelCall) -> Awaitable[ModelResponse]:
        own = final.metadata.get(RETRY)
        return respond(model, partial(copy_lists, final), own if isinstance(own, ModelRetry) else retry, run.text)

    return await lead_model_call(run, step, msgspec.structs.replace(model_call(run, step, own_lists=True)), ask)


async def lead_model_call(
    run: Run, step: Step, call: ModelCall, ask: Callable[[ModelCall], Awaitable[ModelResponse]]
) -> ModelResponse | None:
    """Run a model call through its interceptors, if it has any.

    Args:
        run: The run.
        step: The step.
        call: What the model is to be asked.
        ask: Asks it.

    Returns:
        The response; `None` if a hook denied the call, which ends the run.
    """
    spent = NO_USAGE

    async def terminal(final: ModelCall) -> ModelResponse:
        nonlocal spent
        run.begin_model_call(step)
        work = ask(final)
        try:
            response = await (instrument(run, final, work) if ModelCall in run.enclosing else work)
        except BaseException as error:
            cut = cut_answer(final) if isinstance(error, HookDenied) else None
            if cut is not None:
                spent = cut.usage
            run.journal.end_model_call(NO_USAGE if cut is None else spent, type(error).__name__)
            raise
        if run.journal.durable:
            run.journal.end_model_call(response.usage)
        step.asking = False
        spent = response.usage
        return response

    if ModelCall not in run.intercepted:
        return await terminal(call)
    limit = run.agent.max_guides
    if step.guides >= limit:
        call = with_guides_left(call, 0)
    while True:
        control = RunControl(run, run.watch, asks_again=step.guides < limit)
        traversal = await run_through_chain(run, call, terminal, control)
        if traversal.denied is not None:
            run.denied = traversal.denied
            run.usage += spent  # an answer that was withheld is paid for all the same
            if run.text is not None:
                run.text.withheld(ModelCall)
            return None
        if not traversal.guides:
            break
        message = await discard_answer(run, step, traversal, spent)
        spent = NO_USAGE
        more = [message] if message is not None else []
        call = msgspec.structs.replace(call, messages=[*call.messages, *more])
        call = with_guides_left(call, limit - step.guides)
    given: ModelResponse = traversal.result
    if run.text is not None:
        await run.text.answered(given.content)
    return given


def with_guides_left(call: ModelCall, left: int) -> ModelCall:
    """Return a model call that tells its hooks how often a `Guide` can have the model asked again."""
    return msgspec.structs.replace(call, metadata={GUIDES_LEFT: left})


async def discard_answer(run: Run, step: Step, traversal: Traversal, spent: Usage) -> Message | None:
    """Discard a model's answer because hooks returned `Guide`. It is paid for, but nobody is given any of it.

    Args:
        run: The run.
        step: The step.
        traversal: The model call, with what the hooks returned.
        spent: The usage of the call; zero if a hook answered it.

    Returns:
        The message with the hooks' feedback, which the conversation has now; `None` if all feedback is empty.
    """
    step.guides += 1
    run.usage += spent
    step.cost_usd += spent.cost_usd
    if run.text is not None:
        run.text.withheld(ModelCall)
    feedback = [(hook_id, text) for hook_id, text in traversal.guides if text]
    message = None
    if feedback:
        message = hook_message([hook_id for hook_id, _ in feedback], "\n\n".join(text for _, text in feedback))
        run.messages.append(message)
    if run.phases is not None:
        await move_to(run, Phase.ANALYZING_LLM_RESPONSE)
        await move_to_model(run)
    if run.journal.durable:
        await checkpoint(run)
    return message


def model_call(run: Run, step: Step, *, own_lists: bool = False) -> ModelCall:
    """Return the call of the model in a step.

    Args:
        run: The run.
        step: The step.
        own_lists: Whether its lists are copies, for a receiver that may edit them; `replace` makes them read-only.
    """
    messages, specs = run.messages, run.specs
    call = ModelCall(
        messages=NO_LIST,
        tools=NO_LIST,
        model=getattr(run.agent.model, "name", ""),
        step_index=step.index,
        **run.ids,
    )
    # Set behind its back, since each list given to a call is copied into a read-only one.
    force_setattr(call, "messages", list(messages) if own_lists else messages)
    force_setattr(call, "tools", list(specs) if own_lists else specs)
    return call


async def make_job(run: Run, step: Step, calling: ToolRequest) -> Job | None:
    """Return the job of one call that the model asked for; `None` if a person must approve it first."""
    found = run.find(calling)
    if isinstance(found, Agent):
        return SubAgentJob(run, step, calling, found)
    call, problem = make_call(run, step, calling, found)
    # Where interceptors judge the call, they are asked first, and the tool after them.
    asks = found is not None and problem is None and ToolCall not in run.intercepted
    if asks and found is not None and found.needs_approval is not False and await found.asks_first(call):
        step.asked[calling.tool_call_id] = to_pending(call)
        return None
    return tool_job(run, step, calling, call, found, problem)


def limit_reached(run: Run) -> CompletionReason | None:
    """Return why no further step may follow: an interrupt, or one of the agent's limits; `None` if one may."""
    if run.interrupted:
        return "interrupted"
    if run.steps >= run.agent.max_steps:
        return "max_steps"
    limit = run.agent.cost_limit_usd
    if limit is not None and run.usage.cost_usd >= limit:
        return "cost_limit"
    return None


def assign_call_ids(callings: Sequence[ToolRequest], step_index: int) -> list[ToolRequest]:
    """Give each call of a response a unique id and read-only arguments.

    A call that came without an id gets `t<step>.<position>`, which is the same in every run of the same script.
    """
    seen: set[str] = set()
    unique = []
    for position, calling in enumerate(callings):
        name = calling.tool_call_id if isinstance(calling.tool_call_id, str) else ""
        if len(name) > LONGEST_CALL_ID or not name.isprintable():
            name = ""  # no store, and no provider, would take it
        while not name or name in seen:
            name = f"{name}_{position}" if name else f"t{step_index}.{position}"
        seen.add(name)
        if name != calling.tool_call_id or calling.args.__class__ is not ReadOnlyDict:
            calling = msgspec.structs.replace(calling, tool_call_id=name, args=freeze_args(calling.args))
        unique.append(calling)
    return unique
