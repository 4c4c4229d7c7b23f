# ruff: noqa
# The public surface that users may rely on, written by hand: `test_contract.py` reads this file as a table.
#
# A string names the module that what follows it is in. A class lists fields and methods: its constructor takes fields by
# keyword alone, unless `by_position` says how many go by position. `tag` is its `type` on the wire, `wire` names the
# fields whose names there differ by more than their case. `= ...` is a default whose value does not matter.
# The code may have more fields and parameters than stand here, if all of them have defaults.

"hookline.events"

CompletionReason = Literal["done", "error", "interrupted", "max_steps", "cost_limit", "waiting_for_human"]

class HookType(StrEnum):
    BEFORE_STEP = "beforeStep"
    AFTER_STEP = "afterStep"
    ON_COMPLETE = "onComplete"
    ON_ERROR = "onError"
    BEFORE_TOOL_CALL = "beforeToolCall"
    AFTER_TOOL_CALL = "afterToolCall"
    ON_TOOL_CALL_ERROR = "onToolCallError"
    BEFORE_HUMAN_INTERVENTION = "beforeHumanIntervention"
    AFTER_HUMAN_INTERVENTION = "afterHumanIntervention"
    ON_STOP_BY_HUMAN_INTERVENTION = "onStopByHumanIntervention"
    BEFORE_COMPACT = "beforeCompact"
    AFTER_COMPACT = "afterCompact"
    ON_COMPACT_ERROR = "onCompactError"
    BEFORE_CALL_AGENT = "beforeCallAgent"
    AFTER_CALL_AGENT = "afterCallAgent"
    ON_CALL_AGENT_ERROR = "onCallAgentError"

class _Event:
    operation_id: str
    time_unix_nano: int = ...
    agent_id: str = ""
    user_id: str = ""
    tenant_id: str = ""
    parent_operation_id: str | None = None

class _ToolEvent(_Event, wire={"toolset": "identifier", "tool_name": "apiName"}):
    toolset: str
    tool_name: str
    args: dict[str, Any]
    call_index: int
    step_index: int
    tool_call_id: str

class _Answered(_ToolEvent):
    mocked: bool = False
    answered_by: str | None = None
    metadata: dict[str, Any] = ...
    execution_time_ms: float = ...

class BeforeStep(_Event, tag="beforeStep"):
    step_index: int

class AfterStep(_Event, tag="afterStep"):
    step_index: int
    step_type: Literal["call_llm", "call_tool", "request_human_approve"]
    content: str
    reasoning: str
    tools_calling: list[ToolRequest]
    tools_result: list[ToolOutcome]
    should_continue: bool
    execution_time_ms: float
    elapsed_ms: float
    step_cost_usd: float
    total_cost_usd: float
    total_input_tokens: int
    total_output_tokens: int
    total_steps: int
    total_tool_calls: int

class OnComplete(_Event, tag="onComplete"):
    reason: CompletionReason
    steps: int
    llm_calls: int
    tool_calls: int
    total_tokens: int
    cost_usd: float
    duration_ms: float
    last_assistant_content: str
    error_type: str | None = ...
    error_message: str | None = ...

class OnError(_Event, tag="onError"):
    error_message: str
    error_type: str
    error_detail: str
    step_index: int | None = ...

class BeforeToolCall(_ToolEvent, tag="beforeToolCall"):
    def mock(self, answer) -> bool: ...
    @property
    def mocked(self) -> bool: ...

class AfterToolCall(_Answered, tag="afterToolCall"):
    content: str
    success: bool

class OnToolCallError(_Answered, tag="onToolCallError"):
    error: str
    error_type: str

class BeforeHumanIntervention(_Event, tag="beforeHumanIntervention"):
    step_index: int
    pending_tools: list[PendingTool]

class AfterHumanIntervention(_Event, tag="afterHumanIntervention"):
    action: Literal["approve", "reject", "rejectAndContinue"]
    tool_call_id: str | None = ...
    rejection_reason: str | None = ...

class OnStopByHumanIntervention(_Event, tag="onStopByHumanIntervention"):
    tool_call_id: str | None = ...
    rejection_reason: str | None = ...

class BeforeCompact(_Event, tag="beforeCompact"):
    step_index: int
    message_count: int
    token_count: int

class AfterCompact(_Event, tag="afterCompact"):
    step_index: int
    group_id: str
    messages_before: int
    messages_after: int
    summary: str

class OnCompactError(_Event, tag="onCompactError"):
    step_index: int
    token_count: int
    error: str

class BeforeCallAgent(_Event, tag="beforeCallAgent"):
    callee_id: str
    instruction: str

class AfterCallAgent(_Event, tag="afterCallAgent"):
    callee_id: str
    sub_operation_id: str
    thread_id: str
    success: bool

class OnCallAgentError(_Event, tag="onCallAgentError"):
    callee_id: str
    error: str

class PendingTool(wire={"toolset": "identifier", "tool_name": "apiName"}):
    toolset: str
    tool_name: str
    tool_call_id: str
    args: dict[str, Any]

class ToolOutcome(wire={"toolset": "identifier", "tool_name": "apiName"}):
    toolset: str
    tool_name: str
    tool_call_id: str
    content: str
    success: bool

class ToolRequest(by_position=2, wire={"toolset": "identifier", "tool_name": "apiName"}):
    tool_name: str
    args: dict[str, Any] | str = ...
    toolset: str = "local"
    tool_call_id: str = ""

def encode(event) -> bytes: ...
def decode(data): ...
def json_schema(): ...

"hookline.hooks"

class Hooks:
    def __init__(self, id="hooks", *, priority=100, tenant_id="", inherit=False, shadow=False): ...
    def on(self, event, *, tool=None, timeout=None, id=None): ...
    def before(self, call, *, priority=None, tool=None, timeout=None, on_error="closed", wait=True, id=None): ...
    def guard(self, call, *, priority=None, tool=None, timeout=None, on_error="closed", wait=True, id=None): ...
    def after(self, call, *, priority=None, tool=None, timeout=None, on_error="closed", wait=True, id=None): ...
    def around(self, call, *, priority=None, tool=None, timeout=None, on_error="closed", wait=True, id=None): ...
    def on_phase(self, source, target, *, timeout=None, id=None): ...
    @property
    def interceptors(self): ...

class Hook:
    id: str
    type: HookType | type[Event]
    handler: Any = ...
    tool: str | None = None
    timeout: float | None = None
    webhook: Any = None

class Interceptor:
    id: str
    call: Any
    kind: Literal["before", "guard", "after", "around"]
    handler: Any
    priority: int = 100
    tool: str | None = None
    timeout: float | None = None
    on_error: Literal["open", "closed"] = "closed"
    wait: bool = True
    tenant_id: str = ""
    shadow: bool = False

"hookline.dispatcher"

class HookDispatcher:
    def __init__(self, *, hook_timeout=30.0, max_queued=10_000): ...
    async def __aenter__(self): ...
    def register(self, operation_id, hooks): ...
    async def unregister(self, operation_id, *, drain_timeout=5.0): ...
    def has_hooks(self, operation_id, event=None): ...
    def dispatch(self, event): ...
    async def dispatch_before_tool_call(self, event): ...
    def operation(self, operation_id, hooks=()): ...
    @property
    def operations(self): ...

class Registration:
    def remove(self): ...

class DrainReport:
    delivered: int
    dropped: int

"hookline.signals"

class HookExecution:
    hook_id: str
    hook_type: str
    operation_id: str
    status: Literal["ok", "error", "timeout", "denied", "mocked", "dropped", "shadow"]
    duration_ms: float
    error: str | None = ...
    decision: Literal["", "denied", "asked", "mocked", "changed", "continued"] = ""
    reason: str = ""

"hookline.calls"

class _Call:
    operation_id: str = ""
    tenant_id: str = ""
    metadata: dict[str, Any] = ...

class AgentCall(_Call):
    input: list[Message]
    instructions: str = ...
    tools: list[ToolSpec] = ...
    def add_context(self, text): ...

class StepCall(_Call):
    step_index: int

class ModelCall(_Call):
    messages: list[Message]
    tools: list[ToolSpec] = ...
    model: str = ...
    settings: dict[str, Any] = ...

class ToolCall(_Call):
    toolset: str = "local"
    tool_name: str
    args: dict[str, Any] = ...
    tool_call_id: str = ...
    call_index: int = ...
    step_index: int = ...
    def add_context(self, text): ...

class CompactCall(_Call):
    messages: list[Message]
    token_count: int

class SubAgentCall(_Call):
    callee_id: str
    instruction: str

class RequestCall(_Call):
    method: str
    path: str
    headers: dict[str, str] = ...

class MemoryCall(_Call):
    key: str
    value: Any

class AgentResult:
    output: str

class StepResult: ...

class ModelResponse:
    content: str = ""
    tool_calls: list[ToolRequest] = ...
    reasoning: str = ""
    usage: Usage = ...
    finish_reason: str = "stop"

class ToolResult:
    content: str
    success: bool = True
    error_type: str | None = None
    metadata: dict[str, Any] = ...

class CompactResult:
    summary: str

class RequestResult:
    status: int
    headers: dict[str, str] = ...

class MemoryResult: ...

class Deny(by_position=1):
    reason: str
    stop: bool = False

class Respond(by_position=1):
    answer: Any

class Ask(by_position=1):
    prompt: str

class Continue(by_position=1):
    input: str

class Guide(by_position=1):
    feedback: str

class Denial:
    hook_id: str
    reason: str

class Message:
    role: Literal["system", "user", "assistant", "tool"]
    content: str
    tool_calls: list[ToolRequest] = ...
    tool_call_id: str | None = None

class Usage:
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0

"hookline.interceptors"

class Chain:
    def __init__(self, hooks=..., *, budget=None, hook_timeout=30.0, record=True): ...
    async def run(self, call, terminal): ...

class Outcome:
    call: Any
    result: Any
    denied: Denial | None = None
    asked: Any = ...
    continues: Any = ...
    executions: Any = ...
    duration_ms: float = ...
    def unwrap(self): ...

"hookline.phases"

class Phase(StrEnum):
    UNINITIALIZED = "uninitialized"
    BOOTSTRAPPING = "bootstrapping"
    IDLE = "idle"
    PROCESSING_USER_INPUT = "processing_user_input"
    AWAITING_LLM_RESPONSE = "awaiting_llm_response"
    ANALYZING_LLM_RESPONSE = "analyzing_llm_response"
    AWAITING_TOOL_APPROVAL = "awaiting_tool_approval"
    TOOL_DENIED = "tool_denied"
    EXECUTING_TOOL = "executing_tool"
    PROCESSING_TOOL_RESULT = "processing_tool_result"
    SHUTTING_DOWN = "shutting_down"
    SHUTDOWN_COMPLETE = "shutdown_complete"
    ERROR = "error"

class PhaseMachine:
    def __init__(self, agent_id, hooks=(), *, operation_id=""): ...
    async def move(self, target, *, reason=""): ...
    @property
    def phase(self): ...

class PhaseTransition:
    agent_id: str
    operation_id: str = ...
    source: Phase
    target: Phase
    time_unix_nano: int = ...
    reason: str = ...

class PhaseHook:
    async def execute(self, context): ...
    @property
    def source_phase(self): ...
    @property
    def target_phase(self): ...

"hookline.runtime"

class Agent:
    def __init__(
        self,
        *,
        id,
        model,
        tools=...,
        instructions="",
        sub_agents=...,
        compaction=None,
        max_steps=50,
        max_continues=3,
        max_guides=3,
        cost_limit_usd=None,
        hooks=...,
    ): ...

async def exec_agent(
    agent,
    prompt,
    *,
    hooks=(),
    operation_id=None,
    user_id="",
    tenant_id="",
    parent_operation_id=None,
    dispatcher=None,
    store=None,
    drain_timeout=5.0,
): ...
async def resume_agent(
    agent,
    operation_id,
    decisions,
    *,
    hooks=(),
    store=None,
    dispatcher=None,
    drain_timeout=5.0,
    allow_missing_hooks=False,
): ...
async def recover_agent(agent, operation_id, *, store, allow_missing_hooks=False): ...
def interrupt(operation_id): ...
def tool(fn=None, *, name=None, needs_approval=False, in_thread=True): ...

class AgentSession:
    def __init__(self, agent, *, hooks=()): ...
    async def __aenter__(self): ...
    async def run(self, prompt, *, hooks=()): ...
    async def resume(self, decisions, *, allow_missing_hooks=False): ...

class OperationResult:
    operation_id: str
    reason: CompletionReason
    output: str
    messages: list[Message]
    steps: int
    usage: Usage
    tool_calls: int
    pending: list[PendingTool] = ...
    error: BaseException | None = None
    denied: Denial | None = None
    def raise_for_error(self): ...

class Model(Protocol):
    async def respond(self, call): ...

class ScriptedModel:
    def __init__(self, turns): ...
    async def respond(self, call): ...

class Compaction:
    max_tokens: int
    summarize: Any
    keep_last: int = 1

class Approve(by_position=1, tag="approve"):
    tool_call_id: str

class Reject(by_position=1, tag="reject"):
    tool_call_id: str
    reason: str = ""
    and_continue: bool = False

class InMemoryStore:
    def __init__(self): ...
    async def load(self, operation_id): ...
    async def save(self, state, *, expected_version): ...

"hookline.errors"

class HooklineError(Exception): ...
class HookDefinitionError(HooklineError): ...
class HookUsageError(HooklineError): ...
class HookExecutionError(HooklineError): ...
class HookDenied(HooklineError): ...
class EventDecodeError(HooklineError): ...
class PhaseTransitionError(HooklineError): ...
class TransientModelError(HooklineError): ...

class MissingHooksError(HooklineError):
    def __init__(self, operation_id, missing): ...

class RunFailedError(HooklineError):
    def __init__(self, error_type, message): ...

"hookline.registry"

class Registry:
    def hooks(self, tenant_id=""): ...

"hookline.store"

class Worker:
    def __init__(self, store, agents, *, allow_missing_hooks=False): ...

"hookline.server"

class Server:
    def __init__(self, url=..., *, allow_missing_hooks=False): ...

"hookline.otel"

class TracingHooks:
    def __init__(self, tracer_provider=None): ...

class MetricsHooks:
    def __init__(self, meter_provider=None): ...

"hookline.evals"

class ToolMocks: ...
class Cassette: ...
class EventRecorder: ...
class Trajectory: ...
