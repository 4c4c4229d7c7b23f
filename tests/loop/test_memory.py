"""What is left of a run when it has ended."""

from __future__ import annotations

import gc
import weakref

import openai

from hookline import Hooks, OnComplete, ToolCall
from hookline.loop import wrap
from tests.adapters.provider import Provider, function, says

from .dialects import http_client


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def test_nothing_of_a_sync_run_waits_for_the_collector(provider: Provider) -> None:
    provider.script(says(None, function("add", '{"a": 1, "b": 2}', "c1")), says("3"))
    hooks = Hooks("hooks")
    hooks.on(OnComplete)(lambda event: None)
    hooks.guard(ToolCall)(lambda call: None)

    gc.collect()
    gc.disable()
    try:
        with openai.OpenAI(base_url=provider.url, api_key="key", http_client=http_client(sync=True)) as client:
            with wrap(client, hooks=[hooks], tools=[add]) as run:
                answer = run.client.chat.completions.create(model="model", messages=[{"role": "user", "content": "go"}])
                (result,) = run.call_tools(answer)
                run.client.chat.completions.create(model="model", messages=[{"role": "user", "content": "go on"}])
            gone = [weakref.ref(each) for each in (run, run.client, run._adapter.run, run._binding)]
            del run, answer
            left = [each() for each in gone]
    finally:
        gc.enable()

    assert result["content"] == "3"
    assert left == [None] * 4
