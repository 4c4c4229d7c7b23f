"""`has_hooks` and `dispatch` with plain handlers, against one dict look-up and a bare loop over the same handlers."""

from __future__ import annotations

from benchmarks.harness import Row, Samples, Timer, interleave, statement
from hookline import AfterStep, AfterToolCall, BeforeStep, HookDispatcher, Hooks, signals

OPERATION = "op"
NOBODY = 2.4
"""Two look-ups in tables, where one is the limit: one table per event takes half of that, and twice the memory."""

STEP = BeforeStep(operation_id=OPERATION, step_index=0)
TOOL = AfterToolCall(
    operation_id=OPERATION,
    toolset="local",
    tool_name="search",
    args={"query": "hooks"},
    call_index=1,
    step_index=0,
    tool_call_id="call_1",
    content="42 results",
    success=True,
)


async def bench(rounds: int) -> list[Row]:
    async with HookDispatcher() as dispatcher:
        return [
            *await nothing_hooked(dispatcher, rounds),
            *await plain_handlers(dispatcher, rounds),
        ]


async def nothing_hooked(dispatcher: HookDispatcher, rounds: int) -> list[Row]:
    other = Hooks("other")
    other.on(AfterStep)(ignore)
    dispatcher.register(OPERATION, [other])
    unknown = BeforeStep(operation_id="unknown", step_index=0)
    table: dict[str, object] = {"elsewhere": ignore}

    def look_up(operation_id: str) -> object:
        return table.get(operation_id)

    names = {"dispatcher": dispatcher, "STEP": STEP, "unknown": unknown, "BeforeStep": BeforeStep}
    limit = "a function with one dict look-up"
    samples = await interleave(
        {
            limit: statement("look_up('op')", look_up=look_up),
            "has_hooks [hooks=0]": statement("dispatcher.has_hooks('op', BeforeStep)", **names),
            "has_hooks [hooks=0, any event]": statement("dispatcher.has_hooks('unknown')", **names),
            "dispatch [hooks=0, unknown operation]": statement("dispatcher.dispatch(unknown)", **names),
            "dispatch [hooks=0, other events hooked]": statement("dispatcher.dispatch(STEP)", **names),
        },
        rounds,
    )
    await dispatcher.unregister(OPERATION)
    return [
        samples.row(limit),
        samples.row("has_hooks [hooks=0]", limit, at_most=NOBODY),
        samples.row("has_hooks [hooks=0, any event]", limit),
        samples.row("dispatch [hooks=0, unknown operation]", limit, at_most=NOBODY),
        samples.row("dispatch [hooks=0, other events hooked]", limit, at_most=NOBODY),
    ]


async def plain_handlers(dispatcher: HookDispatcher, rounds: int) -> list[Row]:
    rows = []
    for count, goal in ((1, 2.5), (10, 1.6)):
        handlers = [make_handler() for _ in range(count)]
        dispatcher.register("plain", [bundle_of(handlers)])
        dispatcher.register("filtered", [bundle_of(handlers, tool="*/search")])
        plain, filtered = at("plain"), at("filtered")
        limit = f"bare loop [hooks={count}]"
        case = f"dispatch [hooks={count}"
        cases = {
            limit: statement("bare_loop(handlers, event)", bare_loop=bare_loop, handlers=handlers, event=plain),
            f"{case}]": statement("dispatcher.dispatch(event)", dispatcher=dispatcher, event=plain),
            f"{case}, tool='*/search']": statement("dispatcher.dispatch(event)", dispatcher=dispatcher, event=filtered),
            f"{case}, hook_executed connected]": connected(
                statement("dispatcher.dispatch(event)", dispatcher=dispatcher, event=plain)
            ),
        }
        samples: Samples = await interleave(cases, rounds)
        rows += [
            samples.row(limit),
            samples.row(f"{case}]", limit, at_most=goal),
            samples.row(f"{case}, tool='*/search']", limit),
            samples.row(f"{case}, hook_executed connected]", limit),
        ]
        await dispatcher.unregister("plain")
        await dispatcher.unregister("filtered")
    return rows


def bare_loop(handlers: list, event: object) -> None:
    for handler in handlers:
        handler(event)


def ignore(event: object) -> None:
    pass


def make_handler():
    def handler(event: object) -> None:
        pass

    return handler


def bundle_of(handlers, tool: str | None = None) -> Hooks:
    bundle = Hooks("bundle")
    for handler in handlers:
        bundle.on(AfterToolCall, tool=tool)(handler)
    return bundle


def at(operation_id: str) -> AfterToolCall:
    fields = {field: getattr(TOOL, field) for field in TOOL.__struct_fields__}
    return AfterToolCall(**{**fields, "operation_id": operation_id})


def connected(timer: Timer) -> Timer:
    """The same work while somebody listens to the records."""

    def receiver(sender: object, execution: object) -> None:
        pass

    def timed(times: int):
        with signals.hook_executed.connected_to(receiver):
            return timer(times)

    timed.repeats = timer.repeats
    return timed
