"""Lifecycle hooks for AI agents: see, steer and test every run without touching the loop.

`import hookline` itself loads next to nothing: a name is imported from its module when it is first used.
"""

# ruff: noqa: F403, F405

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hookline import signals
    from hookline.calls import *
    from hookline.dispatcher import *
    from hookline.errors import *
    from hookline.events import *
    from hookline.hooks import *
    from hookline.interceptors import *
    from hookline.phases import *
    from hookline.runtime import *
    from hookline.signals import *

__all__ = [
    "AfterCallAgent",
    "AfterCompact",
    "AfterHumanIntervention",
    "AfterStep",
    "AfterToolCall",
    "Agent",
    "AgentCall",
    "AgentResult",
    "AgentSession",
    "Approve",
    "Ask",
    "BeforeCallAgent",
    "BeforeCompact",
    "BeforeHumanIntervention",
    "BeforeStep",
    "BeforeToolCall",
    "Chain",
    "CompactCall",
    "CompactResult",
    "Compaction",
    "CompletionReason",
    "Continue",
    "Denial",
    "Deny",
    "DrainReport",
    "Event",
    "Guide",
    "Hook",
    "HookDispatcher",
    "HookExecution",
    "HookType",
    "HooklineError",
    "Hooks",
    "InMemoryStore",
    "Interceptor",
    "MemoryCall",
    "MemoryResult",
    "Message",
    "MissingExtraError",
    "Model",
    "ModelCall",
    "ModelResponse",
    "OnCallAgentError",
    "OnCompactError",
    "OnComplete",
    "OnError",
    "OnStopByHumanIntervention",
    "OnToolCallError",
    "OperationResult",
    "OperationStore",
    "Outcome",
    "PartialResponse",
    "PendingTool",
    "Phase",
    "PhaseHook",
    "Registration",
    "Reject",
    "RequestCall",
    "RequestResult",
    "Respond",
    "ScriptedModel",
    "StepCall",
    "StepResult",
    "SubAgentCall",
    "TextParts",
    "Tool",
    "ToolCall",
    "ToolOutcome",
    "ToolRequest",
    "ToolResult",
    "ToolSpec",
    "TransientModelError",
    "Usage",
    "decode",
    "encode",
    "exec_agent",
    "interrupt",
    "json_schema",
    "resume_agent",
    "signals",
    "stream_agent",
    "tool",
]

_HOMES = ("signals", "errors", "calls", "events", "hooks", "phases", "interceptors", "dispatcher", "runtime")
"""Modules of the names above, in the order of their layers: to look a name up loads those below its module at most."""
_MODULES = frozenset({*_HOMES, "asgi", "builtin", "execution", "instrumentation", "redaction", "webhooks"})

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name in _MODULES:
            return importlib.import_module(f"hookline.{name}")
        if name in __all__:
            for home in _HOMES:
                module = importlib.import_module(f"hookline.{home}")
                if name in module.__all__:
                    value = globals()[name] = getattr(module, name)
                    return value
        raise AttributeError(f"module 'hookline' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__, *_MODULES})
