"""Interceptors that decide nothing, before a tool call: a chain of ours, an emission of `agent-hooks-sdk`.

Both build what they are given, a `ToolCall` or a context. Ours also calls a terminal; theirs leaves that to its caller.
`agent_hooks` comes as it is by default (a limit of 5 s for each interceptor, identities of the context, a record), and
once more with the limit and the identities switched off. Its records are not kept, so that memory does not count.
"""

from __future__ import annotations

import math

from agent_hooks import AgentContextBuilder, Decision, InterceptionEmitter, Verdict

from benchmarks.harness import Row, Timer, block, interleave
from hookline import Chain, Interceptor, ToolCall, ToolResult

ARGS = {"query": "hooks"}
RESULT = ToolResult(content="42 results")
ALLOWED = Verdict(Decision.ALLOW)
GOAL = 20


async def bench(rounds: int) -> list[Row]:
    rows = []
    for count in (1, 5):
        ours = f"hookline chain [around={count}]"
        bare = f"hookline chain [around={count}, timeout=inf, no records]"
        theirs = f"agent_hooks emit [interceptors={count}]"
        lean = f"agent_hooks emit [interceptors={count}, no timeout, no identities]"
        cases = {
            ours: with_hookline("around", make_around, count),
            f"hookline chain [before={count}]": with_hookline("before", make_before, count),
            bare: with_hookline("around", make_around, count, hook_timeout=math.inf, record=False),
            theirs: with_agent_hooks(count),
            lean: with_agent_hooks(count, timeout=None, identity_provider=None),
        }
        samples = await interleave(cases, rounds)
        rows += [
            samples.row(ours),
            samples.row(f"hookline chain [before={count}]"),
            samples.row(bare),
            samples.row(theirs, ours, at_least=GOAL),
            samples.row(theirs, f"hookline chain [before={count}]"),
            samples.row(lean, ours),
            samples.row(lean, bare),
        ]
    return rows


def with_hookline(kind: str, make, count: int, **options: object) -> Timer:
    hooks = [Interceptor(id=f"h{number}", call=ToolCall, kind=kind, handler=make()) for number in range(count)]
    return block(
        "call = make(operation_id='op', tool_name='search', args=args, tool_call_id='call_1')\n"
        "await chain.run(call, terminal)",
        make=ToolCall,
        args=ARGS,
        chain=Chain(hooks, **options),
        terminal=terminal,
    )


def with_agent_hooks(count: int, **options: object) -> Timer:
    emitter = InterceptionEmitter(**options)
    emitter.set_max_records(1)
    for _ in range(count):
        emitter.register(Allowing())
    builder = AgentContextBuilder(agent_id="agent", framework="bench", session_id="op")
    return block(
        "context = make(call_id='call_1', name='search', args=args)\nawait emitter.emit(context)",
        make=builder.pre_tool_call,
        args=ARGS,
        emitter=emitter,
    )


class Allowing:
    """An interceptor that does nothing."""

    async def intercept(self, context: dict) -> Verdict:
        return ALLOWED


async def terminal(call: ToolCall) -> ToolResult:
    return RESULT


def make_around():
    async def handler(call: ToolCall, call_next) -> ToolResult:
        return await call_next(call)

    return handler


def make_before():
    async def handler(call: ToolCall) -> None:
        pass

    return handler
