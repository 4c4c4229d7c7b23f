"""Opening and closing an operation that shares a bundle, against as many connects and disconnects of blinker."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import blinker

from benchmarks.harness import Row, block, interleave, statement
from hookline import HookDispatcher, Hooks
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
    return rows


async def nothing() -> None:
    pass


def fresh_ids() -> Iterator[str]:
    """Ids as operations have them: none comes twice. blinker keeps a bucket for each, and pays for making it."""
    return (f"op {number}" for number in count())


def make_receiver():
    def receiver(event: object) -> None:
        pass

    return receiver
