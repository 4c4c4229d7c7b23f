"""Attach hookline to the tests of LangChain: `create_agent` gives an agent with a middleware and hooks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import wraps
from typing import Any

import langchain.agents
import langchain.agents.factory
from langchain.agents.middleware import AgentMiddleware
from peer_hooks import hooks_that_do_nothing

from hookline.adapters.langchain import HooklineMiddleware, hooked

create_agent = langchain.agents.create_agent


@wraps(create_agent)
def _create_agent(
    model: Any, tools: Sequence[Any] | None = None, *, middleware: Sequence[Any] = (), **options: Any
) -> Any:
    wraps_calls = any(
        type(each).wrap_tool_call is not AgentMiddleware.wrap_tool_call
        or type(each).awrap_tool_call is not AgentMiddleware.awrap_tool_call
        or getattr(each, "tools", ())
        for each in middleware
    )
    ours = HooklineMiddleware(tools=bool(tools) or wraps_calls)
    agent = create_agent(model, tools, middleware=[ours, *middleware], **options)
    return hooked(agent, hooks=hooks_that_do_nothing())


langchain.agents.create_agent = langchain.agents.factory.create_agent = _create_agent
