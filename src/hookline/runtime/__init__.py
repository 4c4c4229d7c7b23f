"""Run agents: `exec_agent` and its relatives, sessions, tools, models, stores, and runs of other frameworks."""

from hookline.calls import Message, ModelCall, ModelResponse, ToolRequest, ToolResult, ToolSpec, Usage
from hookline.errors import ModelError, TransientModelError
from hookline.runtime._adapter_run import AdapterRun, AgentDone, ToolDone
from hookline.runtime._agent import Agent, Compaction
from hookline.runtime._approvals import DECIDED as DECIDED
from hookline.runtime._approvals import DECISIONS as DECISIONS
from hookline.runtime._approvals import Action as Action
from hookline.runtime._approvals import action_of as action_of
from hookline.runtime._approvals import decision_of as decision_of
from hookline.runtime._capabilities import KINDS, Capabilities
from hookline.runtime._docstrings import parse_docstring as parse_docstring
from hookline.runtime._engine import Engine, Segment
from hookline.runtime._exec import TextStream, exec_agent, interrupt, recover_agent, resume_agent, stream_agent
from hookline.runtime._held_stream import HeldEvents as HeldEvents
from hookline.runtime._inherited_hooks import hooks_of_child as hooks_of_child
from hookline.runtime._inherited_hooks import inherited_hooks as inherited_hooks
from hookline.runtime._inputs import check_decisions as check_decisions
from hookline.runtime._inputs import new_operation_id as new_operation_id
from hookline.runtime._model_pause import ModelPause as ModelPause
from hookline.runtime._model_pause import model_pause as model_pause
from hookline.runtime._model_retry import RETRY as RETRY
from hookline.runtime._model_retry import ModelRetry
from hookline.runtime._models import Model, ScriptedModel, StreamingModel
from hookline.runtime._models import Release as Release
from hookline.runtime._models import model_by_name as model_by_name
from hookline.runtime._operation_retry import find_prompt as find_prompt
from hookline.runtime._operation_retry import is_compacted as is_compacted
from hookline.runtime._operation_retry import make_retry as make_retry
from hookline.runtime._persistence import let_go_when_cancelled as let_go_when_cancelled
from hookline.runtime._recovery import stored_result as stored_result
from hookline.runtime._session import AgentSession
from hookline.runtime._state import FORMAT as FORMAT
from hookline.runtime._state import (
    Approve,
    CallingOperation,
    DurableStore,
    InMemoryHistory,
    InMemoryStore,
    InterceptorKey,
    JournalEntry,
    ModelCallRecord,
    OperationResult,
    OperationState,
    OperationStore,
    Reject,
    RemoteHearer,
    SessionMemory,
)
from hookline.runtime._state import tool_message as tool_message
from hookline.runtime._steps import assign_call_ids as assign_call_ids
from hookline.runtime._sub_agents import describe_result as describe_result
from hookline.runtime._tool_calls import run_overlapping as run_overlapping
from hookline.runtime._tools import PlainFunction as PlainFunction
from hookline.runtime._tools import Tool, ToolSource, as_result, tool
from hookline.runtime._unsupported_hooks import check_driven as check_driven

__all__ = [
    "KINDS",
    "AdapterRun",
    "Agent",
    "AgentDone",
    "AgentSession",
    "Approve",
    "CallingOperation",
    "Capabilities",
    "Compaction",
    "DurableStore",
    "Engine",
    "InMemoryHistory",
    "InMemoryStore",
    "InterceptorKey",
    "JournalEntry",
    "Message",
    "Model",
    "ModelCall",
    "ModelCallRecord",
    "ModelError",
    "ModelResponse",
    "ModelRetry",
    "OperationResult",
    "OperationState",
    "OperationStore",
    "Reject",
    "RemoteHearer",
    "ScriptedModel",
    "Segment",
    "SessionMemory",
    "StreamingModel",
    "TextStream",
    "Tool",
    "ToolDone",
    "ToolRequest",
    "ToolResult",
    "ToolSource",
    "ToolSpec",
    "TransientModelError",
    "Usage",
    "as_result",
    "exec_agent",
    "interrupt",
    "recover_agent",
    "resume_agent",
    "stream_agent",
    "tool",
]
