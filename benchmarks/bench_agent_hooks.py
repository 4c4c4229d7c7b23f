"""Policies of AGENT-HOOKS-0.1 in a run: what one dispatch costs there, against the emitter of the SDK alone.

A dispatch in a run is half of what a tool call costs more with policies at `pre_tool_call` and `post_tool_call` than
without. The emitter alone builds and emits the same two contexts. Both ask one plain interceptor, which allows.
"""

from __future__ import annotations

from typing import Any

from agent_hooks import AgentContextBuilder, InterceptionEmitter, Verdict

from benchmarks.harness import Row, Timer, interleave, statement
from hookline import Agent, HookDispatcher, ModelCall, ModelResponse, ScriptedModel, ToolRequest, exec_agent, tool
from hookline.adapters.agent_hooks import PolicyHooks

CALLS = 20
"""Tool calls of one run, one per step, so that what a run costs once hardly counts."""

ARGS = {"query": "hooks"}


class AllowAll:
    """An interceptor that decides nothing."""

    def intercept(self, context: dict[str, Any]) -> Verdict:
        return Verdict.allow()


def play(call: ModelCall) -> ModelResponse:
    if call.step_index == CALLS:
        return ModelResponse(content="that is all")
    call_id = f"call_{call.step_index}"
    return ModelResponse(tool_calls=[ToolRequest(tool_name="search", args=ARGS, tool_call_id=call_id)])


@tool
async def search(query: str) -> str:
    """Search the web."""
    return query


async def bench(rounds: int) -> list[Row]:
    agent = Agent(id="searcher", model=ScriptedModel(play), tools=[search])
    points = ("pre_tool_call", "post_tool_call")
    given = {"no policy": (), "approvals=None": None, "approvals='ask'": "ask"}
    cases: dict[str, Timer] = {"emitter": emitter_alone()}
    async with HookDispatcher() as dispatcher:
        for name, approvals in given.items():
            hooks = () if approvals == () else [PolicyHooks(AllowAll(), at=points, approvals=approvals)]
            cases[f"run [{name}]"] = statement(
                "await exec_agent(agent, 'How many?', hooks=hooks, dispatcher=dispatcher)",
                unroll=1,
                exec_agent=exec_agent,
                agent=agent,
                hooks=hooks,
                dispatcher=dispatcher,
            )
        samples = await interleave(cases, rounds)
    alone = "a dispatch, emitter of the SDK alone"
    samples.derive(alone, lambda both: both / 2, "emitter")
    rows = [samples.row(alone)]
    for name in list(given)[1:]:
        inside = f"a dispatch, in a run [{name}]"
        samples.derive(inside, lambda policed, bare: (policed - bare) / (2 * CALLS), f"run [{name}]", "run [no policy]")
        rows.append(samples.row(inside, alone, at_most=1.5))
    return rows


def emitter_alone() -> Timer:
    """The two contexts of a tool call, built and emitted."""
    return statement(
        "await emitter.emit(builder.pre_tool_call(call_id='call_0', name='search', args=args)); "
        "await emitter.emit(builder.post_tool_call(call_id='call_0', name='search', args=args, value='hooks')); "
        "emitter.take_records()",
        unroll=1,
        emitter=InterceptionEmitter().register(AllowAll()),
        builder=AgentContextBuilder(agent_id="searcher", framework="bench", session_id="op_1"),
        args=ARGS,
    )
