"""What the tests of interceptors in a run arrange with: a probe at every point, and one agent that passes them all."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import msgspec

from hookline import (
    Agent,
    AgentCall,
    AgentSession,
    CompactCall,
    Compaction,
    HookDispatcher,
    Hooks,
    InMemoryStore,
    MemoryCall,
    Message,
    ModelCall,
    StepCall,
    SubAgentCall,
    ToolCall,
    tool,
)
from hookline.errors import StaleStateError
from hookline.interceptors import Interceptor
from hookline.phases import PhaseTransition
from hookline.runtime import OperationState

from . import scenes
from .scenes import agent_of, calls, says

POINTS: dict[str, type[Any]] = {
    kind.__name__: kind for kind in (AgentCall, StepCall, ModelCall, ToolCall, SubAgentCall, CompactCall, MemoryCall)
}
"""Every call that a run makes, by its name."""

Counts = dict[str, int]

replace = msgspec.structs.replace


def full(times: int = 1) -> Counts:
    """Every kind of hook that often."""
    return {"before": times, "guard": times, "in": times, "after": times, "out": times} if times else {}


def no_result(times: int = 1) -> Counts:
    """As where the call raised, was cancelled, or was denied by the innermost: no `after`."""
    return {"before": times, "guard": times, "in": times, "out": times}


class Probe:
    """Hooks of each kind at every point, which change nothing and note everything."""

    def __init__(self, name: str = "probe", *, inherit: bool = False, priority: int = 100) -> None:
        self.hooks = Hooks(name, inherit=inherit, priority=priority)
        self.seen: list[tuple[str, str, Any, Any]] = []
        for kind in POINTS.values():
            self._watch(kind)

    def _watch(self, kind: type[Any]) -> None:
        name = kind.__name__

        @self.hooks.around(kind)
        async def around(call: Any, call_next: Any) -> Any:
            self.seen.append((name, "in", call, None))
            try:
                result = await call_next(call)
            except BaseException as error:
                self.seen.append((name, "out", call, error))
                raise
            self.seen.append((name, "out", call, result))
            return result

        @self.hooks.before(kind)
        def before(call: Any) -> None:
            self.seen.append((name, "before", call, None))

        @self.hooks.after(kind)
        async def after(call: Any, result: Any) -> None:
            self.seen.append((name, "after", call, result))

        @self.hooks.guard(kind)
        async def guard(call: Any) -> None:
            self.seen.append((name, "guard", call, None))

    def counts(self, point: str) -> Counts:
        """How often each kind of hook was called there."""
        return dict(Counter(kind for name, kind, _, _ in self.seen if name == point))

    def of(self, point: str, kind: str) -> list[tuple[Any, Any]]:
        """What the hooks of a kind were given there: call, and result or error."""
        return [(call, result) for name, hook, call, result in self.seen if (name, hook) == (point, kind)]


def intercept(kind: str, point: type[Any], handler: Callable[..., Any], **options: Any) -> Interceptor:
    """The plain record of a hook."""
    return Interceptor(**{"id": f"{kind}-hook", "kind": kind, "call": point, "handler": handler, **options})


def before(point: type[Any], handler: Callable[..., Any], **options: Any) -> Interceptor:
    return intercept("before", point, handler, **options)


def guard(point: type[Any], handler: Callable[..., Any], **options: Any) -> Interceptor:
    return intercept("guard", point, handler, **options)


def after(point: type[Any], handler: Callable[..., Any], **options: Any) -> Interceptor:
    return intercept("after", point, handler, **options)


def around(point: type[Any], handler: Callable[..., Any], **options: Any) -> Interceptor:
    return intercept("around", point, handler, **options)


class World:
    """An agent whose one task passes every point: a tool, a sub-agent, a compaction, and a second model call."""

    def __init__(self, **parts: Any) -> None:
        self.ran: list[str] = []
        self.hang: str = ""
        self.fail: str = ""
        self.begun = anyio.Event()

        @tool
        async def look(q: str) -> str:
            await self.passing("tool")
            return f"found {q}"

        async def summarize(messages: list[Message]) -> str:
            await self.passing("summary")
            return "summed up"

        async def answer(asked: ModelCall) -> Any:
            await self.passing("model")
            if any(message.role == "tool" or message.content.endswith("summed up") for message in asked.messages):
                return says("all done")
            return calls(
                *(scenes.call("look", f"t{n}", q=f"x{n}") for n in range(self.parallel)),
                *(scenes.ask("helper", f"h{n}") for n in range(self.children)),
                tokens=100,
            )

        async def child_answer(asked: ModelCall) -> Any:
            await self.passing("child")
            return says("helped")

        self.parallel = parts.pop("parallel", 1)
        self.children = parts.pop("children", 1)
        child = Agent(id="helper", model=Answering(child_answer), hooks=parts.pop("child_hooks", ()))
        self.agent = Agent(
            id="world",
            model=Answering(answer),
            tools=[look],
            sub_agents=[child],
            compaction=Compaction(max_tokens=10, summarize=summarize, keep_last=0),
            **parts,
        )

    async def passing(self, place: str) -> None:
        """Hang or fail there, if that is the plan."""
        self.ran.append(place)
        if self.hang == place:
            self.begun.set()
            await anyio.sleep_forever()
        if self.fail == place:
            raise RuntimeError(f"{place} broke")


class Answering:
    """A model that is one async function."""

    name = "answering"
    provider = "tests"

    def __init__(self, answer: Callable[[ModelCall], Any]) -> None:
        self.answer = answer

    async def respond(self, call: ModelCall) -> Any:
        return await self.answer(call)


class JsonStore:
    """Keeps states as bytes, as any database would."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}

    async def load(self, operation_id: str) -> OperationState | None:
        found = self.kept.get(operation_id)
        return None if found is None else msgspec.json.decode(found, type=OperationState)

    async def save(self, state: OperationState, *, expected_version: int | None) -> None:
        found = await self.load(state.operation_id)
        if (found.version if found else None) != expected_version:
            raise StaleStateError(state.operation_id, expected_version, found.version if found else None)
        self.kept[state.operation_id] = msgspec.json.encode(state)


def paying(paid: list[Any], *turns: Any, needs_approval: Any = False, **parts: Any) -> Agent:
    """An agent, built anew, with one tool that does harm and one that does not."""

    @tool(needs_approval=needs_approval)
    async def pay(amount: int) -> str:
        paid.append(amount)
        return f"paid {amount}"

    @tool
    async def look() -> str:
        paid.append("look")
        return "looked"

    return agent_of(*turns, id="payer", tools=[pay, look], **parts)


def pay(amount: int = 5, call_id: str = "p1") -> Any:
    """The model's call of `pay`."""
    return scenes.call("pay", call_id, amount=amount)


def noting_phases(moves: list[str], name: str = "phases") -> Hooks:
    """A bundle that writes down every move, as `source>target`."""
    hooks = Hooks(name)

    @hooks.on_phase(None, None)
    def note(move: PhaseTransition) -> None:
        moves.append(f"{move.source}>{move.target}")

    return hooks


@asynccontextmanager
async def session_of(agent: Agent, **given: Any) -> AsyncIterator[AgentSession]:
    """A session on a dispatcher that must be empty in the end."""
    with anyio.fail_after(5):
        async with HookDispatcher() as dispatcher:
            async with AgentSession(agent, **{"dispatcher": dispatcher, "store": InMemoryStore(), **given}) as session:
                yield session
            assert not dispatcher.operations


def contents(messages: Iterable[Message], role: str | None = None) -> list[str]:
    """What was said."""
    return [message.content for message in messages if role in (None, message.role)]


async def turns(count: int = 10) -> None:
    """Let everybody else have a few turns."""
    for _ in range(count):
        await anyio.lowlevel.checkpoint()
