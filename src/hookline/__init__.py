"""Lifecycle hooks for AI agents: see, steer and test every run without touching the loop.

`import hookline` itself loads next to nothing: each name is imported from its home when it is first used.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hookline import signals
    from hookline.calls import (
        AgentCall,
        AgentResult,
        Ask,
        CompactCall,
        CompactResult,
        Continue,
        Denial,
        Deny,
        MemoryCall,
        MemoryResult,
        Message,
        ModelCall,
        ModelResponse,
        RequestCall,
        RequestResult,
        Respond,
        StepCall,
        StepResult,
        SubAgentCall,
        ToolCall,
        ToolRequest,
        ToolResult,
        ToolSpec,
        Usage,
    )
    from hookline.dispatcher import DrainReport, HookDispatcher, Registration
    from hookline.errors import HooklineError, MissingExtraError, TransientModelError
    from hookline.events import (
        AfterCallAgent,
        AfterCompact,
        AfterHumanIntervention,
        AfterStep,
        AfterToolCall,
        BeforeCallAgent,
        BeforeCompact,
        BeforeHumanIntervention,
        BeforeStep,
        BeforeToolCall,
        CompletionReason,
        Event,
        HookType,
        OnCallAgentError,
        OnCompactError,
        OnComplete,
        OnError,
        OnStopByHumanIntervention,
        OnToolCallError,
        PendingTool,
        ToolOutcome,
        decode,
        encode,
        json_schema,
    )
    from hookline.hooks import Hook, Hooks, Interceptor
    from hookline.interceptors import Chain, Outcome
    from hookline.phases import Phase, PhaseHook
    from hookline.runtime import (
        Agent,
        AgentSession,
        Approve,
        Compaction,
        InMemoryStore,
        Model,
        OperationResult,
        OperationStore,
        Reject,
        ScriptedModel,
        Tool,
        exec_agent,
        interrupt,
        resume_agent,
        stream_agent,
        tool,
    )
    from hookline.signals import HookExecution

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

_HOMES = {
    "hookline.calls": """
        AgentCall AgentResult Ask CompactCall CompactResult Continue Denial Deny MemoryCall
        MemoryResult Message ModelCall ModelResponse RequestCall RequestResult Respond StepCall
        StepResult SubAgentCall ToolCall ToolRequest ToolResult ToolSpec Usage
    """,
    "hookline.dispatcher": "DrainReport HookDispatcher Registration",
    "hookline.errors": "HooklineError MissingExtraError TransientModelError",
    "hookline.events": """
        AfterCallAgent AfterCompact AfterHumanIntervention AfterStep AfterToolCall BeforeCallAgent
        BeforeCompact BeforeHumanIntervention BeforeStep BeforeToolCall CompletionReason Event HookType
        OnCallAgentError OnCompactError OnComplete OnError OnStopByHumanIntervention OnToolCallError
        PendingTool ToolOutcome decode encode json_schema
    """,
    "hookline.hooks": "Hook Hooks Interceptor",
    "hookline.interceptors": "Chain Outcome",
    "hookline.phases": "Phase PhaseHook",
    "hookline.runtime": """
        Agent AgentSession Approve Compaction InMemoryStore Model OperationResult OperationStore
        Reject ScriptedModel Tool exec_agent interrupt resume_agent stream_agent tool
    """,
    "hookline.signals": "HookExecution",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}
_MODULES = frozenset(
    {
        "asgi",
        "calls",
        "dispatcher",
        "errors",
        "events",
        "hooks",
        "interceptors",
        "phases",
        "ready",
        "runtime",
        "signals",
    }
)

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name in _MODULES:
            return importlib.import_module(f"hookline.{name}")
        try:
            home = importlib.import_module(_HOME_OF[name])
        except KeyError:
            raise AttributeError(f"module 'hookline' has no attribute {name!r}") from None
        value = globals()[name] = getattr(home, name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__, *_MODULES})
