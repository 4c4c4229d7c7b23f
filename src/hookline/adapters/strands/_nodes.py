"""The nodes of a graph or a swarm of Strands, as sub-agents of its run."""

from __future__ import annotations

import asyncio
from typing import Any

from strands.hooks import AfterNodeCallEvent, BeforeNodeCallEvent

from hookline.adapters._stepping import Emitted, Relay
from hookline.adapters.strands._seat import Seat, present, seat_of, sub_run
from hookline.adapters.strands._words import text_of

__all__ = ["after_node", "before_node"]


async def before_node(event: BeforeNodeCallEvent) -> None:
    """A node is about to run; what it is asked is the task of the whole."""
    source: Any = event.source
    seat = seat_of(source)
    if seat is None:
        return
    agent = source.nodes[event.node_id].executor

    async def work(instruction: str, operation_id: str) -> str:
        # Not in an `async with`: Strands ends a node in another callback than it began in.
        run, failed = sub_run(seat, agent, operation_id), None
        await run.open()
        present.set(Seat(run, agent, seat))
        try:
            return str(await Emitted(None))
        except BaseException as error:
            failed = error
            raise
        finally:
            present.set(seat)
            await run.close(failed)

    task = source.state.task
    instruction = task if isinstance(task, str) else text_of(task)
    relay = Relay(seat.run.call_agent(event.node_id, instruction, work))
    async for _ in relay:
        seat.nodes[event.node_id] = relay
        return
    event.cancel_node = relay.result.output or True


async def after_node(event: AfterNodeCallEvent) -> None:
    """A node has run."""
    seat = seat_of(event.source)
    relay = seat.nodes.pop(event.node_id, None) if seat is not None else None
    if relay is not None:
        source: Any = event.source
        found = source.state.results.get(event.node_id)  # none if it was cancelled, or took too long
        outcome = found.result if found is not None else asyncio.CancelledError()
        await relay.end(outcome if isinstance(outcome, BaseException) else str(outcome).strip())
