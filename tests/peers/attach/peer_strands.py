"""Attach hookline to the tests of Strands: each run of an agent, a graph or a swarm goes through `hooked`."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from peer_hooks import hooks_that_do_nothing
from strands import Agent
from strands.multiagent.graph import Graph
from strands.multiagent.swarm import Swarm

from hookline.adapters.strands import hooked
from hookline.adapters.strands._run_binding import binding_of


def _attach(kind: Any) -> None:
    # Every other way to run one goes through `stream_async`.
    own = kind.stream_async

    async def stream_async(self: Any, *given: Any, **options: Any) -> AsyncGenerator[Any, None]:
        bare = binding_of(self) is not None
        stream = own(self, *given, **options) if bare else _hooked(self, *given, **options)
        async with aclosing(stream):
            async for event in stream:
                yield event

    kind.stream_async = stream_async


def _hooked(agent: Any, prompt: Any = None, *given: Any, **options: Any) -> AsyncGenerator[Any, None]:
    if given:
        options["invocation_state"] = given[0]
    if "task" in options:  # what graphs and swarms call it
        prompt = options.pop("task")
    return hooked(agent, hooks=hooks_that_do_nothing()).stream_async(prompt, **options)


for each in (Agent, Graph, Swarm):
    _attach(each)
