"""A type checker knows which kind of block a run has, and the class of its client."""

from __future__ import annotations

import inspect
from typing import assert_type

from anthropic import Anthropic, AsyncAnthropic
from openai import AsyncOpenAI, OpenAI

from hookline.loop import LoopRun, SyncLoopRun, wrap
from hookline.loop._api import WrapOptions


def test_the_types_of_runs_are_those_of_their_clients() -> None:
    chat, sync_chat = AsyncOpenAI(api_key="key"), OpenAI(api_key="key")
    messages, sync_messages = AsyncAnthropic(api_key="key"), Anthropic(api_key="key")

    assert_type(wrap(chat), LoopRun[AsyncOpenAI])
    assert_type(wrap(sync_chat), SyncLoopRun[OpenAI])
    assert_type(wrap(messages), LoopRun[AsyncAnthropic])
    assert_type(wrap(sync_messages, hooks=[], agent_id="one"), SyncLoopRun[Anthropic])
    sync_chat.close()
    sync_messages.close()


def test_a_type_checker_knows_every_option() -> None:
    taken = inspect.signature(wrap).parameters.keys() - {"client"}

    assert WrapOptions.__annotations__.keys() == taken
