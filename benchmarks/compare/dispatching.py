"""Plain handlers: nothing hooked, one, ten."""

from __future__ import annotations

import blinker
import pluggy
from pyee.base import EventEmitter

from benchmarks.harness import Row, Timer, interleave, statement
from hookline import BeforeStep, HookDispatcher, Hooks

spec, impl = pluggy.HookspecMarker("bench"), pluggy.HookimplMarker("bench")
EVENT = BeforeStep(operation_id="op", step_index=0)


async def bench(rounds: int) -> list[Row]:
    rows = []
    for count in (0, 1, 10):
        async with HookDispatcher() as dispatcher:
            cases = {
                "hookline dispatch": with_hookline(dispatcher, count),
                "blinker send(sender=)": with_blinker(count),
                "pyee emit": with_pyee(count),
                "pluggy call": with_pluggy(count),
            }
            samples = await interleave({f"{name} [hooks={count}]": timer for name, timer in cases.items()}, rounds)
        ours, *theirs = samples.by_case
        rows.append(samples.row(ours))
        rows += [samples.row(peer, ours, at_least=None if count else 6.0) for peer in theirs]
    return rows


def with_hookline(dispatcher: HookDispatcher, count: int) -> Timer:
    bundle = Hooks("bundle")
    for _ in range(count):
        bundle.on(BeforeStep)(make_handler())
    dispatcher.register("op", [bundle])
    return statement("dispatcher.dispatch(event)", dispatcher=dispatcher, event=EVENT)


def with_blinker(count: int) -> Timer:
    signal = blinker.Signal()
    # Another operation is hooked: a signal without any receiver at all answers sooner, but never is in that state here.
    signal.connect(receive_signal, sender="other", weak=False)
    for _ in range(count):
        signal.connect(make_receiver(), sender="op", weak=False)
    return statement("send('op', event=event)", send=signal.send, event=EVENT)


def with_pyee(count: int) -> Timer:
    emitter = EventEmitter()
    emitter.on("other", ignore)
    for _ in range(count):
        emitter.on("op", make_handler())
    return statement("emit('op', event)", emit=emitter.emit, event=EVENT)


def with_pluggy(count: int) -> Timer:
    manager = pluggy.PluginManager("bench")
    manager.add_hookspecs(Specification)
    for _ in range(count):
        manager.register(Plugin())
    return statement("call(event=event)", call=manager.hook.before_step, event=EVENT)


class Specification:
    """The hook that plugins may implement."""

    @spec
    def before_step(self, event: object) -> None: ...


class Plugin:
    """An implementation that does nothing."""

    @impl
    def before_step(self, event: object) -> None:
        pass


def ignore(event: object) -> None:
    pass


def receive_signal(sender: object, event: object) -> None:
    pass


def make_handler():
    def handler(event: object) -> None:
        pass

    return handler


def make_receiver():
    def receiver(sender: object, event: object) -> None:
        pass

    return receiver
