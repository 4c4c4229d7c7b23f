"""Opening and closing an operation with a shared or a new bundle, against connects and disconnects of blinker."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import blinker

from benchmarks.harness import Row, block, interleave, statement
from hookline import AfterStep, BeforeStep, HookDispatcher, Hooks, OnComplete, ToolCall
from hookline.events import EVENTS

LIVE = 100
"""Operations that stay live next to the one that comes and goes."""


async def bench(rounds: int) -> list[Row]:
    cases, rows = {}, []
    async with HookDispatcher() as dispatcher:
        for size in (0, 3, 16):
            events = list(EVENTS.values())[:size]
            bundle = Hooks("bundle")
            signals = [blinker.Signal() for _ in events]
            receivers = [make_receiver() for _ in events]
            pairs = list(zip(signals, receivers, strict=True))
            for event, receiver in zip(events, receivers, strict=True):
                bundle.on(event)(receiver)
            for index in range(LIVE):
                dispatcher.register(f"live {size} {index}", [bundle])
                for signal, receiver in pairs:
                    signal.connect(receiver, sender=f"live {index}", weak=False)
            tables = [dict.fromkeys(range(LIVE)) for _ in range(size + 1)]
            cases |= {
                f"register + unregister [hooks={size}]": block(
                    "register('op', hooks)\nawait unregister('op')",
                    register=dispatcher.register,
                    unregister=dispatcher.unregister,
                    hooks=[bundle],
                ),
                f"dict stores + deletes [hooks={size}]": block(
                    "for table in tables: table['op'] = tables\nfor table in tables: del table['op']", tables=tables
                ),
            }
            if not size:
                continue
            cases[f"register + unregister [hooks={size}, fresh ids]"] = block(
                "op = next(ids)\nregister(op, hooks)\nawait unregister(op)",
                ids=fresh_ids(),
                register=dispatcher.register,
                unregister=dispatcher.unregister,
                hooks=[bundle],
            )
            for name, first, ids, weak in (
                ("", "op = 'op'", None, ""),
                (", weak=False", "op = 'op'", None, ", weak=False"),
                (", fresh ids", "op = next(ids)", fresh_ids(), ""),
            ):
                cases[f"blinker connect + disconnect [hooks={size}{name}]"] = block(
                    f"{first}\n"
                    f"for signal, receiver in pairs: signal.connect(receiver, sender=op{weak})\n"
                    "for signal, receiver in pairs: signal.disconnect(receiver, sender=op)",
                    pairs=pairs,
                    ids=ids,
                )
        cases["an awaited empty coroutine"] = statement("await nothing()", nothing=nothing)
        samples = await interleave(cases, rounds)
    rows.append(samples.row("an awaited empty coroutine"))
    for size in (0, 3, 16):
        ours, limit = f"register + unregister [hooks={size}]", f"dict stores + deletes [hooks={size}]"
        rows.append(samples.row(limit))
        rows.append(samples.row(ours, limit))
        if size:
            rows.append(samples.row(f"blinker connect + disconnect [hooks={size}]", ours, at_least=10.0))
            rows.append(samples.row(f"blinker connect + disconnect [hooks={size}, weak=False]", ours))
            ours = f"register + unregister [hooks={size}, fresh ids]"
            rows.append(samples.row(ours))
            rows.append(samples.row(f"blinker connect + disconnect [hooks={size}, fresh ids]", ours))
    return [*rows, *await new_bundles(rounds)]


SYNC = """
bundle = Hooks('bundle')
@bundle.on(BeforeStep)
def began(event): return op and None
@bundle.on(AfterStep)
def stepped(event): return op and None
@bundle.on(OnComplete)
def ended(event): return op and None
register(op, [bundle])
await unregister(op)
"""
MIXED = """
bundle = Hooks('bundle')
@bundle.on(BeforeStep)
def began(event): return op and None
@bundle.before(ToolCall)
def check(call): return op and None
@bundle.around(ToolCall)
async def wrap(call, call_next): return op and await call_next(call)
register(op, [bundle])
await unregister(op)
"""
BLINKER = """
def began(event): return op and None
def stepped(event): return op and None
def ended(event): return op and None
for signal, receiver in zip(signals, (began, stepped, ended)): signal.connect(receiver, sender=op)
for signal, receiver in zip(signals, (began, stepped, ended)): signal.disconnect(receiver, sender=op)
"""


async def new_bundles(rounds: int) -> list[Row]:
    """Bundles made for one run, of closures over its id."""
    async with HookDispatcher() as dispatcher:
        names = {
            "Hooks": Hooks,
            "BeforeStep": BeforeStep,
            "AfterStep": AfterStep,
            "OnComplete": OnComplete,
            "ToolCall": ToolCall,
            "register": dispatcher.register,
            "unregister": dispatcher.unregister,
        }
        limit = "blinker connect + disconnect [3 new receivers]"
        kinds = {"sync": SYNC, "async": SYNC.replace("def ", "async def "), "observer, before, around": MIXED}
        samples = await interleave(
            {
                limit: block(f"op = 'op'\n{BLINKER}", signals=[blinker.Signal() for _ in range(3)]),
                **{kind: block(f"op = 'op'\n{code}", **names) for kind, code in kinds.items()},
            },
            rounds,
        )
    return [
        samples.row(limit),
        *(
            samples.row(kind, limit, at_most=2.5, show=f"new bundle + register + unregister [hooks=3, {kind}]")
            for kind in kinds
        ),
    ]


async def nothing() -> None:
    pass


def fresh_ids() -> Iterator[str]:
    """Ids as operations have them: none comes twice. blinker keeps a bucket for each, and pays for making it."""
    return (f"op {number}" for number in count())


def make_receiver():
    def receiver(event: object) -> None:
        pass

    return receiver
