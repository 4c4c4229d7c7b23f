"""Names of spans, attributes and instruments, with units and buckets: every name that reaches a trace or a metric.

Source:
    `gen_ai.*`: OpenTelemetry's conventions for generative AI (`open-telemetry/semantic-conventions-genai`) as of August
    2026. They are in development and have no release, so the names are our own constants and no schema URL is given.
    What they do not know (steps, people, compaction, hooks) is in our own namespace, `hookline.*`.
"""

from typing import Final

__all__ = ["clean", "count", "error_type"]

NAME_CHARACTERS = 256
"""How long a name or an id may be. A model can invent a tool's name of any length."""


def clean(text: object, limit: int = NAME_CHARACTERS) -> str:
    """Return a name or an id as the value of an attribute: invalid Unicode is replaced, and a long text is cut.

    Exporters drop a value with half of a surrogate pair, and write a traceback into the log.
    """
    if text.__class__ is str and len(text) <= limit and text.isascii():
        return text
    if not isinstance(text, str):
        return f"<{type(text).__name__}>"
    if text.__class__ is not str:
        text = str.__str__(text)  # of a class of its own, which encoders do not know
    if len(text) > limit:
        text = f"{text[: limit - 1]}…"
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def error_type(name: object) -> str:
    """Return the class of a failure, or `_OTHER` where a text is no class name."""
    text = name if isinstance(name, str) else ""
    return text if len(text) <= NAME_CHARACTERS and text.isascii() and text.replace(".", "").isidentifier() else OTHER


MOST = 2**63 - 1
"""The largest number that exporters take."""


def count(number: object) -> int | str:
    """Return a count as the value of an attribute: exporters drop numbers of more than 64 bits."""
    if number.__class__ is int and number <= MOST:
        return number
    return min(number, MOST) if isinstance(number, int) else clean(number)


# Spans. A name says what kind of work it is; whose work it is stands behind it where that is one of a few.

INVOKE_AGENT: Final = "invoke_agent"
CHAT: Final = "chat"
EXECUTE_TOOL: Final = "execute_tool"
AGENT_STEP: Final = "agent_step"
CALL_AGENT: Final = "call_agent"
COMPACT_CONTEXT: Final = "compact_context"
HUMAN_INTERVENTION: Final = "human_intervention"
HOOK: Final = "hook"

# Attributes of the conventions.

OPERATION_NAME: Final = "gen_ai.operation.name"
AGENT_NAME: Final = "gen_ai.agent.name"
CONVERSATION_ID: Final = "gen_ai.conversation.id"
CONVERSATION_COMPACTED: Final = "gen_ai.conversation.compacted"
PROVIDER_NAME: Final = "gen_ai.provider.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
REQUEST_STREAM: Final = "gen_ai.request.stream"
RESPONSE_ID: Final = "gen_ai.response.id"
RESPONSE_MODEL: Final = "gen_ai.response.model"
RESPONSE_FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
RESPONSE_TIME_TO_FIRST_CHUNK: Final = "gen_ai.response.time_to_first_chunk"
USAGE_INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
USAGE_OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
TOKEN_TYPE: Final = "gen_ai.token.type"
TOOL_NAME: Final = "gen_ai.tool.name"
TOOL_TYPE: Final = "gen_ai.tool.type"
TOOL_CALL_ID: Final = "gen_ai.tool.call.id"
TOOL_DESCRIPTION: Final = "gen_ai.tool.description"
ERROR_TYPE: Final = "error.type"
EXCEPTION_TYPE: Final = "exception.type"
EXCEPTION_MESSAGE: Final = "exception.message"
EXCEPTION_STACKTRACE: Final = "exception.stacktrace"
USER_ID: Final = "user.id"
EVALUATION_NAME: Final = "gen_ai.evaluation.name"
EVALUATION_SCORE: Final = "gen_ai.evaluation.score.value"
EVALUATION_LABEL: Final = "gen_ai.evaluation.score.label"

REQUEST_SETTINGS: Final = {
    "choice_count": "gen_ai.request.choice.count",
    "frequency_penalty": "gen_ai.request.frequency_penalty",
    "max_tokens": "gen_ai.request.max_tokens",
    "presence_penalty": "gen_ai.request.presence_penalty",
    "seed": "gen_ai.request.seed",
    "stop_sequences": "gen_ai.request.stop_sequences",
    "temperature": "gen_ai.request.temperature",
    "top_k": "gen_ai.request.top_k",
    "top_p": "gen_ai.request.top_p",
}
"""Keys of `ModelCall.settings` that the conventions have a name for."""

# Content, recorded only where the user asked for it.

SYSTEM_INSTRUCTIONS: Final = "gen_ai.system_instructions"
INPUT_MESSAGES: Final = "gen_ai.input.messages"
OUTPUT_MESSAGES: Final = "gen_ai.output.messages"
TOOL_DEFINITIONS: Final = "gen_ai.tool.definitions"
TOOL_CALL_ARGUMENTS: Final = "gen_ai.tool.call.arguments"
TOOL_CALL_RESULT: Final = "gen_ai.tool.call.result"
EVALUATION_EXPLANATION: Final = "gen_ai.evaluation.explanation"
INSTRUCTION: Final = "hookline.call_agent.instruction"
SUMMARY: Final = "hookline.compaction.summary"
HUMAN_REASON: Final = "hookline.human.reason"
GUIDE_FEEDBACK: Final = "hookline.guide.feedback"
CONTEXT_TEXT: Final = "hookline.context.text"
DENIAL_REASON: Final = "hookline.denial.reason"
HOOK_ERROR: Final = "hookline.hook.error"
ERROR_MESSAGE: Final = "hookline.error.message"
CONTENT_TRUNCATED: Final = "hookline.content.truncated"
CONTENT_LENGTH: Final = "hookline.content.length"

# Our own attributes.

OPERATION_ID: Final = "hookline.operation.id"
PARENT_OPERATION_ID: Final = "hookline.parent_operation.id"
TENANT_ID: Final = "hookline.tenant.id"
RESUMED: Final = "hookline.resumed"
OUTCOME: Final = "hookline.outcome"
STEPS: Final = "hookline.steps"
LLM_CALLS: Final = "hookline.llm_calls"
TOOL_CALLS: Final = "hookline.tool_calls"
USAGE_INPUT: Final = "hookline.usage.input_tokens"
USAGE_OUTPUT: Final = "hookline.usage.output_tokens"
SPAN_KIND: Final = "hookline.span.kind"
SPAN_TRUNCATED: Final = "hookline.span.truncated"
LINK: Final = "hookline.link"

STEP_INDEX: Final = "hookline.step.index"
STEP_TYPE: Final = "hookline.step.type"
STEP_SHOULD_CONTINUE: Final = "hookline.step.should_continue"
STEP_TOOL_CALLS: Final = "hookline.step.tool_calls"

TOOL_IDENTIFIER: Final = "hookline.tool.identifier"
TOOL_OUTCOME: Final = "hookline.tool.outcome"
MOCKED: Final = "hookline.tool.mocked"
ANSWERED_BY: Final = "hookline.tool.answered_by"
MOCK_PROVENANCE: Final = {
    "rule": "hookline.tool.mock.rule",
    "fault": "hookline.tool.mock.fault",
    "cassette": "hookline.tool.mock.cassette",
}
"""Keys of an answer's metadata that say where it comes from."""

DENIED_BY: Final = "hookline.denial.hook_id"
DENIAL_CALL: Final = "hookline.denial.call"
DENIAL_CAUSE: Final = "hookline.denial.cause"

ANSWER_HOOK: Final = "hookline.answer.hook_id"
ANSWER_CALL: Final = "hookline.answer.call"

GUIDE_HOOK: Final = "hookline.guide.hook_id"
CONTEXT_HOOK: Final = "hookline.context.hook_id"
CONTEXT_CALL: Final = "hookline.context.call"

CALLEE: Final = "hookline.call_agent.callee"
SUB_OPERATION_ID: Final = "hookline.sub_operation.id"
MESSAGES_BEFORE: Final = "hookline.compaction.messages_before"
MESSAGES_AFTER: Final = "hookline.compaction.messages_after"
TOKENS_BEFORE: Final = "hookline.compaction.tokens_before"
PENDING_COUNT: Final = "hookline.human.pending_count"
HUMAN_KIND: Final = "hookline.human.kind"
HUMAN_DECISION: Final = "hookline.human.decision"
HUMAN_WAIT: Final = "hookline.human.wait.duration"

BUDGET_ID: Final = "hookline.budget.id"
BUDGET_PER: Final = "hookline.budget.per"
BUDGET_EVENT: Final = "hookline.budget.event"

HOOK_ID: Final = "hookline.hook.id"
HOOK_TYPE: Final = "hookline.hook.type"
HOOK_STATUS: Final = "hookline.hook.status"
HOOK_DECISION: Final = "hookline.hook.decision"
HOOK_REVISION: Final = "hookline.hook.revision"
HOOK_DELIVERY: Final = "hookline.hook.delivery"
HOOK_DURATION: Final = "hookline.hook.own_time"

POLICY_CHANGE: Final = "hookline.policy.change"
POLICY_CAUSE: Final = "hookline.policy.cause"

EVALUATION_CHECK: Final = "hookline.evaluation.check"

CALLBACK: Final = "hookline.tracer.callback"

OPENINFERENCE_KIND: Final = "openinference.span.kind"
OPENINFERENCE_KINDS: Final = {
    INVOKE_AGENT: "AGENT",
    CHAT: "LLM",
    EXECUTE_TOOL: "TOOL",
    CALL_AGENT: "CHAIN",
    AGENT_STEP: "CHAIN",
    COMPACT_CONTEXT: "CHAIN",
    HUMAN_INTERVENTION: "CHAIN",
    HOOK: "CHAIN",
}

# Events.

ANSWERED_EVENT: Final = "hookline.answered"
CONTEXT_EVENT: Final = "hookline.context_added"
DENIED_EVENT: Final = "hookline.denied"
GUIDED_EVENT: Final = "hookline.guided"
ERROR_EVENT: Final = "hookline.error"
HOOK_EVENT: Final = "hookline.hook"
MODEL_EXCEPTION_EVENT: Final = "gen_ai.client.operation.exception"
EVALUATION_EVENT: Final = "gen_ai.evaluation.result"
INFERENCE_DETAILS_EVENT: Final = "gen_ai.client.inference.operation.details"

# Values.

OTHER: Final = "_OTHER"
"""Stands for a value that is not known to be one of a few."""

# Instruments: name, unit, what it measures, bounds of its buckets.

SECONDS: Final = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
LONG_SECONDS: Final = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 102.4, 204.8, 409.6)
HOOK_SECONDS: Final = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30)
HUMAN_SECONDS: Final = (1, 10, 60, 300, 1800, 3600, 14400, 86400, 604800)
CALLS: Final = (1, 2, 4, 8, 16, 32, 64, 128)
TOKENS: Final = tuple(4**power for power in range(14))

Instrument = tuple[str, str, str, tuple[float, ...] | tuple[int, ...] | None]

HISTOGRAMS: Final[dict[str, Instrument]] = {
    "agent": ("gen_ai.invoke_agent.duration", "s", "Duration of one segment of an agent's run.", LONG_SECONDS),
    "inferences": (
        "gen_ai.invoke_agent.inference_calls",
        "{inference_call}",
        "Model calls in one segment of an agent's run, without sub-agents.",
        CALLS,
    ),
    "tool_calls": (
        "gen_ai.invoke_agent.tool_calls",
        "{tool_call}",
        "Tool calls in one segment of an agent's run, without sub-agents.",
        CALLS,
    ),
    "tool": ("gen_ai.execute_tool.duration", "s", "Duration of one tool call.", SECONDS),
    "model": ("gen_ai.client.operation.duration", "s", "Duration of one model call, including retries.", SECONDS),
    "first_chunk": (
        "gen_ai.client.operation.time_to_first_chunk",
        "s",
        "Time from the request to the first piece of a streamed answer.",
        SECONDS,
    ),
    "next_chunk": (
        "gen_ai.client.operation.time_per_output_chunk",
        "s",
        "Time from one piece of a streamed answer to the next.",
        SECONDS,
    ),
    "tokens": ("gen_ai.client.token.usage", "{token}", "Tokens of one model call.", TOKENS),
    "step": ("hookline.step.duration", "s", "Duration of one step.", SECONDS),
    "compaction": ("hookline.compaction.duration", "s", "Duration of one compaction.", SECONDS),
    "human": ("hookline.human.wait.duration", "s", "Time that a run waited for a person's decision.", HUMAN_SECONDS),
    "hook": ("hookline.hook.duration", "s", "Own time of one run of a hook's handler.", HOOK_SECONDS),
}
COUNTERS: Final[dict[str, Instrument]] = {
    "dropped": ("hookline.hook.dropped", "{execution}", "Handler runs that were dropped or cut short.", None),
    "budget_cost": ("hookline.budget.cost", "USD", "Cost that calls took from budgets across runs.", None),
    "budget_tokens": ("hookline.budget.tokens", "{token}", "Tokens that calls took from budgets across runs.", None),
    "budget_calls": ("hookline.budget.calls", "{call}", "Tool calls that budgets across runs counted.", None),
    "budget_events": (
        "hookline.budget.events",
        "{event}",
        "Warnings, denials, questions and overruns of budgets.",
        None,
    ),
    "truncated": ("hookline.tracer.truncated_spans", "{span}", "Spans that were ended without their event.", None),
    "rate_alerts": ("hookline.policy.rate_alerts", "{alert}", "Changed rates of denials of shadow hooks.", None),
    "fallbacks": ("hookline.policy.fallbacks", "{fallback}", "Hooks that were put into shadow mode by limits.", None),
    "errors": ("hookline.tracer.errors", "{error}", "Errors in the telemetry itself; the run continues.", None),
}
OPEN_SPANS: Final[Instrument] = ("hookline.tracer.open_spans", "{span}", "Open spans.", None)
LANE_QUEUED: Final[Instrument] = ("hookline.lane.queued", "{event}", "Events waiting in all lanes.", None)
LANE_LENGTH: Final[Instrument] = ("hookline.lane.length", "{event}", "Events waiting in the longest lane.", None)
