"""Hooks as users write them. Type checkers refuse what comes right below `# refused`, and nothing else."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from hookline import (
    AfterStep,
    AfterToolCall,
    AgentCall,
    Ask,
    BeforeToolCall,
    Continue,
    Deny,
    Guide,
    Hook,
    Hooks,
    ModelCall,
    ModelResponse,
    Phase,
    PhaseHook,
    Respond,
    StepCall,
    ToolCall,
    ToolResult,
    exec_agent,
)
from hookline.phases import PhaseTransition
from hookline.runtime import Agent, ScriptedModel

hooks = Hooks("samples", inherit=True)
Next = Callable[[ToolCall], Awaitable[ToolResult]]


# --- observers


@hooks.on(AfterStep)
def watch(event: AfterStep) -> None:
    print(event.step_index, event.content)


@hooks.on(AfterToolCall, tool="search", timeout=5)
async def watch_later(event: AfterToolCall) -> None:
    print(event.tool_name, event.execution_time_ms)


@hooks.on(BeforeToolCall)
def fake(event: BeforeToolCall) -> None:
    event.mock("42 results")


hooks.on(AfterStep)(lambda event: print(event.total_cost_usd))


# refused
@hooks.on(BeforeToolCall)
def refuses(event: BeforeToolCall) -> Deny | None:
    return Deny("destructive")


# refused
@hooks.on(BeforeToolCall)
async def refuses_later(event: BeforeToolCall) -> Deny | None:
    return Deny("destructive")


# refused
@hooks.on(BeforeToolCall)
def answers(event: BeforeToolCall) -> str:
    return "42 results"


# refused
@hooks.on(BeforeToolCall)
def judges(event: BeforeToolCall) -> bool:
    return event.args.get("command") != "rm"


# refused
@hooks.on(AfterStep)
def takes_another_event(event: AfterToolCall) -> None: ...


@hooks.on(AfterToolCall)
def misspells(event: AfterToolCall) -> None:
    # refused
    print(event.api_nam)


# refused
@hooks.on(ToolCall)
def waits_for_a_call(event: ToolCall) -> None: ...


# --- interceptors


@hooks.guard(ToolCall, tool="bash")
def no_rm(call: ToolCall) -> Deny | Ask | None:
    return Deny("destructive") if "rm -rf" in call.args.get("command", "") else None


@hooks.guard(ModelCall)
async def no_model(call: ModelCall) -> Deny:
    return Deny("not today")


@hooks.before(ToolCall)
def rewrite(call: ToolCall) -> ToolCall | Respond | None:
    return msgspec.structs.replace(call, args={}) if call.args else Respond("nothing to do")


@hooks.after(ToolCall)
async def shorten(call: ToolCall, result: ToolResult) -> ToolResult | Deny | None:
    return msgspec.structs.replace(result, content=result.content[:100])


@hooks.after(AgentCall)
def go_on(call: AgentCall, result: Any) -> Continue | None:
    return Continue("more")


@hooks.after(ModelCall)
def send_back(call: ModelCall, answer: Any) -> Guide | Deny | None:
    return Guide("again") if answer.content else None


@hooks.around(ToolCall)
async def time_it(call: ToolCall, call_next: Next) -> ToolResult:
    return await call_next(call)


@hooks.before(ToolCall, wait=False)
def count(call: ToolCall) -> None: ...


# refused
@hooks.guard(ToolCall)
def says_yes(call: ToolCall) -> bool:
    return True


# refused
@hooks.guard(ToolCall)
async def rewrites(call: ToolCall) -> ToolCall:
    return call


# refused
@hooks.before(ToolCall)
def answers_with_text(call: ToolCall) -> str:
    return "x"


# refused
@hooks.after(ToolCall)
def returns_text(call: ToolCall, result: ToolResult) -> str:
    return "x"


# refused
@hooks.after(StepCall)
def asks_too_late(call: StepCall, result: Any) -> Ask:
    return Ask("may I?")


# refused
@hooks.around(ModelCall)
async def returns_a_number(call: ModelCall, call_next: Any) -> int:
    return 3


# refused
@hooks.guard(BeforeToolCall)
def judges_an_event(event: BeforeToolCall) -> None: ...


# --- phase hooks


@hooks.on_phase(None, Phase.IDLE)
async def is_idle(transition: PhaseTransition) -> None:
    print(transition.source)


# refused
@hooks.on_phase(None, Phase.IDLE)
def refuses_the_move(transition: PhaseTransition) -> Deny | None:
    return None


class Ready(PhaseHook):
    source_phase = None
    target_phase = Phase.IDLE

    async def execute(self, context: PhaseTransition) -> None:
        print(context.target)


class Idle(PhaseHook):
    source_phase = None
    target_phase = Phase.IDLE


Ready()
# refused
Idle()


# --- runs


async def main() -> None:
    agent = Agent(id="a", model=ScriptedModel([ModelResponse(content="done")]))
    plain = Hook(id="plain", type=AfterStep, handler=watch)
    result = await exec_agent(agent, "go", hooks=[hooks, plain, Ready()])
    print(result.raise_for_error().output)
    # refused
    await exec_agent(agent, "go", hooks=hooks)
    # refused
    await exec_agent(agent, "go", hooks=[watch])
    if result.denied:
        print(result.denied.reason)
    # refused
    print(result.denied.reason)
