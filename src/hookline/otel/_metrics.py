"""`MetricsHooks`: measure runs and hooks with OpenTelemetry metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter, time_ns
from typing import Any, NamedTuple, get_args

from opentelemetry.context import Context
from opentelemetry.metrics import MeterProvider

from hookline.budgets import BudgetChange
from hookline.calls import Call, CompactCall, Denial, ModelCall, ModelResponse
from hookline.events import (
    AfterCompact,
    AfterHumanIntervention,
    AfterStep,
    AfterToolCall,
    BeforeCompact,
    BeforeHumanIntervention,
    BeforeStep,
    Event,
    HumanAction,
    OnCompactError,
    OnComplete,
    OnToolCallError,
    is_interrupted,
)
from hookline.hooks import Hook, Hooks
from hookline.instrumentation import Instrumentation, SegmentInfo, StreamTimes
from hookline.interceptors import cut_answer
from hookline.otel import _attributes as names
from hookline.otel._attributes import clean, error_type
from hookline.otel._context import check_flags, check_positive, check_provider
from hookline.otel._hook_spans import error_type_of, executions, unregistrations
from hookline.otel._instruments import Failures, instruments_of, is_idle, keep
from hookline.otel._pairing import end_pairing, pair_metrics
from hookline.signals import HookExecution, budget_changed

__all__ = ["MEASURED", "MeasuredCall", "MetricsHooks", "SegmentMeasures", "enter_call"]

ACTIONS = get_args(HumanAction)

UNKNOWN_TOOL = "UnknownToolError"
"""`error_type` of a tool that does not exist: its name is whatever the model has made up. Where a hook answered or
refused before the tool ran, nobody has looked for the tool, so its name must be one of those that were offered."""


class ChatAttributes(NamedTuple):
    """Attributes of a model call's points. They are shared by many points, so nothing may change them."""

    duration: Mapping[str, str]
    input_tokens: Mapping[str, str]
    output_tokens: Mapping[str, str]


class AgentAttributes(NamedTuple):
    """Attributes of the points of one agent. They are shared by many points, so nothing may change them.

    Attributes:
        agent: Those that only name the agent.
        tools: Those of its tool calls, by name of the tool.
        chats: Those of its model calls, by provider, requested model and answering model.
    """

    agent: Mapping[str, str]
    tools: dict[str, Mapping[str, str]]
    chats: dict[tuple[str, str, str], ChatAttributes]


class SegmentMeasures:
    """A segment that is being measured.

    Attributes:
        operation_id: Its operation.
        began: When it began, in nanoseconds since 1970.
        agent: Its agent, as attributes have it.
        bundle: The bundle that measures it.
        kept: Attributes of its points, which all segments of the agent share.
        model: The model that it was begun with.
        provider: The provider of that model.
        resumed: Whether it resumes after a pause.
        llm_calls: Model calls of earlier segments.
        tool_calls: Tool calls of earlier segments.
        waiting_since: The beginning of a wait for a person, in nanoseconds since 1970.
        observed: Whether its bundle observes it; if not, the tracing of the segment calls the bundle.
        tools: Names of the tools that were offered to the model.
        learns: Whether `tools` grows with the model calls: tools of another framework are known from those only.
        last_event: The event that came last: two registrations of a bundle get each event twice.
        failed_with: The error type of the model call that ended the step.
        compacting: When a compaction began, in nanoseconds since 1970; 0 while there is none.
        stream: The times of the streamed answer of the present model call; `None` if it is not streamed.
        compact_error: The error type of a compaction that fails; `None` if it was denied or interrupted.
    """

    __slots__ = (
        "agent",
        "began",
        "bundle",
        "compact_error",
        "compacting",
        "failed_with",
        "kept",
        "last_event",
        "learns",
        "llm_calls",
        "model",
        "observed",
        "operation_id",
        "provider",
        "resumed",
        "stream",
        "tool_calls",
        "tools",
        "waiting_since",
    )

    def __init__(self, segment: SegmentInfo, began: int, kept: AgentAttributes, bundle: MetricsHooks) -> None:
        self.operation_id = segment.operation_id
        self.began = began
        self.kept = kept
        self.bundle = bundle
        self.agent = kept.agent[names.AGENT_NAME]
        self.model = clean(segment.model)
        self.provider = clean(segment.provider) or names.OTHER
        self.resumed = segment.resumed
        self.llm_calls = segment.llm_calls
        self.tool_calls = segment.tool_calls
        self.waiting_since = segment.waiting_since_unix_nano
        self.tools = {tool.name for tool in segment.tools}
        self.learns = not self.tools
        self.last_event: Event | None = None
        self.failed_with: str | None = None
        self.observed = True
        self.stream: StreamTimes | None = None
        self.compacting = 0
        self.compact_error: str | None = names.OTHER


MeasuredCall = tuple[SegmentMeasures, float, Call]
"""What `leave` needs of `enter`: the measures of the segment, when the call began, and the call."""


def enter_call(measures: SegmentMeasures, call: Call) -> MeasuredCall:
    """Note the start of a call."""
    if measures.learns and isinstance(call, ModelCall):
        measures.tools.update(tool.name for tool in call.tools)
    return measures, perf_counter(), call


class MetricsHooks(Instrumentation):
    """Measure runs, model calls, tool calls and hooks as OpenTelemetry metrics.

    One instance can measure any number of runs at the same time. Sub-agents are measured separately. No attribute is
    the id of an operation, a conversation or a user, and every attribute has a limited number of values.

    Args:
        meter_provider: Where metrics go; by default the global one.
        agent_metrics: Whether to measure runs of agents (duration, model and tool calls). Set it to False if the
            framework does.
        model_metrics: Whether to measure model calls (duration, tokens). Set it to False if the model's library does.
        tool_metrics: Whether to measure tool calls (duration). Set it to False if the framework does.
        hook_metrics: Whether to measure hooks and budgets. While a run is measured, this makes records of hook runs in
            the whole process, which takes time.
        max_values: The most values of one attribute (tools, agents, models, hooks), for all bundles of a provider.
            Further values become `_OTHER`.
        id: Name of the bundle.

    Raises:
        HookUsageError: If an argument is invalid.
    """

    encloses = frozenset({ModelCall, CompactCall})

    def __init__(
        self,
        meter_provider: MeterProvider | None = None,
        *,
        agent_metrics: bool = True,
        model_metrics: bool = True,
        tool_metrics: bool = True,
        hook_metrics: bool = True,
        max_values: int = 200,
        id: str = "metrics",  # noqa: A002
    ) -> None:
        super().__init__(id, inherit=True)
        check_provider("meter_provider", meter_provider, "get_meter")
        check_flags(agent_metrics=agent_metrics, model_metrics=model_metrics)
        check_flags(tool_metrics=tool_metrics, hook_metrics=hook_metrics)
        check_positive("max_values", max_values, whole=True)
        self._provider, self._instruments = instruments_of(meter_provider)
        self._record = self._instruments.histograms
        self._failures = Failures(id, self._instruments)
        self._agent_metrics = agent_metrics
        self._model_metrics = model_metrics
        self._tool_metrics = tool_metrics
        self._hook_metrics = hook_metrics
        limited = self._instruments.limit_values
        self._agents = limited(names.AGENT_NAME, max_values)
        self._models, self._providers = (
            limited(names.REQUEST_MODEL, max_values),
            limited(names.PROVIDER_NAME, max_values),
        )
        self._tools, self._errors = limited(names.TOOL_NAME, max_values), limited(names.ERROR_TYPE, max_values)
        self._budgets = limited(names.BUDGET_ID, max_values)
        self._hooks, self._types = limited(names.HOOK_ID, max_values), limited(names.HOOK_TYPE, max_values)
        self._kept: dict[str, AgentAttributes] = {}
        self._operations: dict[str, SegmentMeasures] = {}
        self._open: set[str] = set()
        """Operations of which hooks and budgets are measured: until their end, which comes after their last event."""
        if hook_metrics:
            budget_changed.connect(self._receive_budget_change)  # blinker holds it weakly, so it ends with the bundle
        self._own_runs = Instrumentation(id)
        """Observes the runs of this package, which need no first event to begin."""
        self._own_runs.observers = tuple(
            Hook(id=f"{id}.{kind.hook_type}", type=kind, handler=self._observer(kind)) for kind in self._actions
        )
        beginning = Hook(id=f"{id}.{BeforeStep.hook_type}", type=BeforeStep, handler=self._begin_unannounced)
        self.observers = (beginning, *self._own_runs.observers)

    # What a run of this package does with the bundle.

    def begin(self, segment: SegmentInfo) -> tuple[SegmentMeasures | None, Hooks | None]:
        """Begin to measure a segment, unless metrics go nowhere."""
        try:
            if is_idle(self._provider):
                return None, None
            measures = self._begin_measuring(segment, time_ns())
            if segment.dispatcher is not None:
                self._instruments.observe_lanes(segment.dispatcher)
            pair_metrics(segment, measures)
            return measures, self._own_runs if measures.observed else None
        except Exception as error:
            self._failures.note("begin", error)
            return None, None

    def end(self, begun: SegmentMeasures | None) -> None:
        """Stop measuring a segment."""
        if begun is None:
            return
        try:
            end_pairing(begun.operation_id)
            self._end_hook_metrics(begun.operation_id)
            if self._operations.get(begun.operation_id) is begun:
                del self._operations[begun.operation_id]
        except Exception as error:
            self._failures.note("end", error)

    def enter(self, call: Call) -> MeasuredCall | None:
        """Note the start of a model call or a compaction, unless the tracing calls this bundle for it."""
        measures = self._operations.get(call.operation_id)
        return None if measures is None or not measures.observed else enter_call(measures, call)

    def leave(self, entered: MeasuredCall | None, result: object, error: BaseException | None) -> None:
        """Measure a model call, unless it was interrupted, and count a compaction."""
        if entered is None:
            return
        try:
            measures, began, call = entered
            if measures.stream is not None and isinstance(call, ModelCall):
                self._record_stream(measures, call, measures.stream, result)
            if type(call) is ModelCall and error is None:
                measures.failed_with = None
                self._record_model_call(measures, call, perf_counter() - began, result, None)
                return
            interrupted = error is not None and not isinstance(error, Exception)
            if isinstance(call, CompactCall):
                measures.compact_error = None if interrupted else error_type(type(error).__name__)
            elif isinstance(call, ModelCall) and not interrupted:
                # It ends the step, unless another runtime asks again.
                measures.failed_with = self._errors(error_type(type(error).__name__))
                self._record_model_call(measures, call, perf_counter() - began, result, measures.failed_with)
        except Exception as problem:
            self._failures.note("leave", problem)

    def streamed(self, call: ModelCall, times: StreamTimes) -> None:
        """Keep the times of a streamed answer until the end of the model call."""
        measures = self._operations.get(call.operation_id)
        if measures is not None:
            measures.stream = times

    def reported(self, call: ModelCall, response: ModelResponse, *, provider: str, times: tuple[int, int]) -> None:
        """Measure a model call that ended earlier."""
        try:
            measures = self._operations.get(call.operation_id)
            if measures is not None:
                seconds = (times[1] - times[0]) / 1e9
                self._record_model_call(measures, call, seconds, response, None, provider=clean(provider))
        except Exception as error:
            self._failures.note("reported", error)

    def refused(self, call: Call, denial: Denial, *, cause: BaseException | None, ran: bool, stop: bool) -> None:
        """Note that a compaction was denied by a hook, which is no failure."""
        measures = self._operations.get(call.operation_id)
        if measures is not None and isinstance(call, CompactCall):
            measures.compact_error = None

    def _record_model_call(
        self,
        measures: SegmentMeasures,
        call: ModelCall,
        seconds: float,
        result: object,
        failed_with: str | None,
        *,
        provider: str = "",
    ) -> None:
        if not self._model_metrics:
            return
        answer: ModelResponse | None
        if isinstance(result, ModelResponse):
            answer, answered_by = result, result.model
        else:
            answer, answered_by = cut_answer(call), ""
        attributes = self._chat_attributes(measures, call.model, answered_by, provider)
        if answer is not None and ((usage := answer.usage).input_tokens or usage.output_tokens):
            record = self._record["tokens"].record
            record(usage.input_tokens, attributes.input_tokens)
            record(usage.output_tokens, attributes.output_tokens)
        duration = attributes.duration
        if failed_with is not None:
            duration = {**duration, names.ERROR_TYPE: failed_with}
        self._record["model"].record(seconds, duration)

    def _record_stream(self, measures: SegmentMeasures, call: ModelCall, times: StreamTimes, result: object) -> None:
        measures.stream = None
        if self._model_metrics and times.first is not None:
            answered_by = result.model if isinstance(result, ModelResponse) else ""
            attributes = self._chat_attributes(measures, call.model, answered_by).duration
            self._record["first_chunk"].record(times.first, attributes)
            record = self._record["next_chunk"].record
            for seconds in times.between:
                record(seconds, attributes)

    def _chat_attributes(
        self, measures: SegmentMeasures, model: str, answered_by: str, provider: str = ""
    ) -> ChatAttributes:
        provider = provider or measures.provider
        key = provider, model or measures.model, answered_by
        found = measures.kept.chats.get(key)
        if found is not None:
            return found
        model, answered_by = clean(model) or measures.model, answered_by and clean(answered_by)
        attributes = {names.OPERATION_NAME: names.CHAT, names.PROVIDER_NAME: provider}
        if model:
            attributes[names.REQUEST_MODEL] = self._models(model)
        if answered_by:
            attributes[names.RESPONSE_MODEL] = self._models(answered_by)
        made = ChatAttributes(
            attributes,
            {**attributes, names.TOKEN_TYPE: "input"},
            {**attributes, names.TOKEN_TYPE: "output"},
        )
        # Not `_OTHER`: a bundle with a higher limit may still make the value known to all.
        if names.OTHER not in (attributes.get(names.REQUEST_MODEL), attributes.get(names.RESPONSE_MODEL)):
            keep(measures.kept.chats, key, made)
        return made

    # Events, which any runtime may send.

    def _observer(self, kind: type[Event]) -> Callable[[Event], None]:
        find, action, failures = self._operations.get, self._actions[kind], self._failures

        def observe(event: Event) -> None:
            measures = find(event.operation_id)
            # Two registrations of this bundle get each event twice.
            if measures is not None and measures.observed and event is not measures.last_event:
                measures.last_event = event
                try:
                    action(self, measures, event, None)
                except Exception as error:
                    failures.note(str(event.hook_type), error)

        return observe

    def _begin_unannounced(self, event: Event) -> None:
        """Begin to measure a segment of another runtime, by its first event."""
        try:
            if event.operation_id not in self._operations and not is_idle(self._provider):
                segment = SegmentInfo(operation_id=event.operation_id, agent_id=event.agent_id)
                self._begin_measuring(segment, event.time_unix_nano)
                unregistrations.watch(event.operation_id, self._forget_unregistered)
        except Exception as error:
            self._failures.note(str(event.hook_type), error)

    def _measure(self, measures: SegmentMeasures, event: Event, context: Context | None) -> None:
        """Measure what an event says, in the context of the span that it is about."""
        try:
            if event is not measures.last_event:  # two registrations of this bundle get it twice
                measures.last_event = event
                self._actions[event.__class__](self, measures, event, context)
        except Exception as error:
            self._failures.note(str(event.hook_type), error)

    def _begin_measuring(self, segment: SegmentInfo, at: int) -> SegmentMeasures:
        measures = SegmentMeasures(segment, at, self._agent_attributes(clean(segment.agent_id)), self)
        measures.provider = self._providers(measures.provider)
        self._operations[segment.operation_id] = measures
        if self._hook_metrics:
            self._open.add(segment.operation_id)
            executions.watch(segment.operation_id, self._receive_execution)
        return measures

    def _agent_attributes(self, agent: str) -> AgentAttributes:
        found = self._kept.get(agent)
        if found is None:
            value = self._agents(agent)
            found = AgentAttributes({names.AGENT_NAME: value}, {}, {})
            if value != names.OTHER:
                keep(self._kept, agent, found)
        return found

    def _after_step(self, measures: SegmentMeasures, event: AfterStep, context: Context | None) -> None:
        attributes = measures.kept.agent
        if measures.failed_with is not None:
            attributes = {**attributes, names.ERROR_TYPE: measures.failed_with}
            measures.failed_with = None
        self._record["step"].record(event.execution_time_ms / 1e3, attributes, context)

    def _after_tool_call(self, measures: SegmentMeasures, event: AfterToolCall, context: Context | None) -> None:
        denied = event.answered_by is not None and not event.mocked
        self._record_tool_call(measures, event, None if event.success or denied else "tool_error", context)

    def _on_tool_call_error(self, measures: SegmentMeasures, event: OnToolCallError, context: Context | None) -> None:
        failed_with = None if is_interrupted(event) else error_type(event.error_type)
        self._record_tool_call(measures, event, failed_with, context)

    def _record_tool_call(
        self,
        measures: SegmentMeasures,
        event: AfterToolCall | OnToolCallError,
        error_type: str | None,
        context: Context | None,
    ) -> None:
        if not self._tool_metrics:
            return
        if error_type is None and event.answered_by is None:
            kept = measures.kept.tools.get(event.tool_name)
            if kept is not None:
                self._record["tool"].record(event.execution_time_ms / 1e3, kept, context)
                return
        real = event.tool_name in measures.tools or (error_type != UNKNOWN_TOOL and event.answered_by is None)
        attributes = self._tool_attributes(measures, clean(event.tool_name) if real else names.OTHER)
        if error_type is not None:
            attributes = {**attributes, names.ERROR_TYPE: self._errors(error_type)}
        self._record["tool"].record(event.execution_time_ms / 1e3, attributes, context)

    def _tool_attributes(self, measures: SegmentMeasures, tool: str) -> Mapping[str, str]:
        found = measures.kept.tools.get(tool)
        if found is None:
            value = tool if tool == names.OTHER else self._tools(tool)
            found = {names.TOOL_NAME: value, names.TOOL_TYPE: "function", names.AGENT_NAME: measures.agent}
            if value != names.OTHER:
                keep(measures.kept.tools, tool, found)
        return found

    def _before_human_intervention(
        self, measures: SegmentMeasures, event: BeforeHumanIntervention, context: Context | None
    ) -> None:
        measures.waiting_since = event.time_unix_nano

    def _after_human_intervention(
        self, measures: SegmentMeasures, event: AfterHumanIntervention, context: Context | None
    ) -> None:
        if measures.waiting_since is not None:
            action = event.action if event.action in ACTIONS else names.OTHER
            waited = max(0, event.time_unix_nano - measures.waiting_since) / 1e9
            self._record["human"].record(waited, {names.HUMAN_DECISION: action, names.AGENT_NAME: measures.agent})

    def _before_compact(self, measures: SegmentMeasures, event: BeforeCompact, context: Context | None) -> None:
        measures.compacting = event.time_unix_nano

    def _after_compact(
        self, measures: SegmentMeasures, event: AfterCompact | OnCompactError, context: Context | None
    ) -> None:
        began, measures.compacting = measures.compacting, 0
        error_type, measures.compact_error = measures.compact_error, names.OTHER
        if began:
            attributes = measures.kept.agent
            if isinstance(event, OnCompactError) and error_type is not None:
                attributes = {**attributes, names.ERROR_TYPE: self._errors(error_type)}
            self._record["compaction"].record(max(0, event.time_unix_nano - began) / 1e9, attributes, context)

    def _on_complete(self, measures: SegmentMeasures, event: OnComplete, context: Context | None) -> None:
        if self._operations.pop(event.operation_id, None) is None or not self._agent_metrics:
            return
        agent = measures.kept.agent
        attributes: dict[str, Any] = dict(agent)
        if measures.model:
            attributes[names.REQUEST_MODEL] = self._models(measures.model)
        if measures.resumed:
            attributes[names.RESUMED] = True
        if event.reason == "error":
            attributes[names.ERROR_TYPE] = self._errors(error_type(event.error_type))
        self._record["agent"].record(max(0, event.time_unix_nano - measures.began) / 1e9, attributes)
        self._record["inferences"].record(event.llm_calls - measures.llm_calls, agent)
        self._record["tool_calls"].record(event.tool_calls - measures.tool_calls, agent)

    _actions: dict[type[Event], Any] = {  # noqa: RUF012  (read only)
        AfterStep: _after_step,
        AfterToolCall: _after_tool_call,
        OnToolCallError: _on_tool_call_error,
        BeforeHumanIntervention: _before_human_intervention,
        AfterHumanIntervention: _after_human_intervention,
        BeforeCompact: _before_compact,
        AfterCompact: _after_compact,
        OnCompactError: _after_compact,
        OnComplete: _on_complete,
    }

    # Hooks.

    def _receive_execution(self, operation_id: str, execution: HookExecution | None) -> None:
        if execution is None:
            return
        try:
            attributes: dict[str, Any] = {
                names.HOOK_ID: self._hooks(clean(execution.hook_id)),
                names.HOOK_TYPE: self._types(clean(execution.hook_type)),
            }
            if execution.status == "dropped":
                self._instruments.counters["dropped"].add(1, attributes)
                return
            attributes[names.HOOK_DELIVERY] = "handler"
            attributes[names.HOOK_STATUS] = execution.status
            if execution.status in ("error", "timeout"):
                attributes[names.ERROR_TYPE] = self._errors(error_type_of(execution))
            self._record["hook"].record(execution.duration_ms / 1e3, attributes)
        except Exception as error:
            self._failures.note("hook_executed", error)

    def _receive_budget_change(self, sender: object, change: BudgetChange) -> None:
        if change.operation_id not in self._open:
            return
        try:
            scope, counters = change.figures.scope, self._instruments.counters
            attributes: dict[str, Any] = {
                names.BUDGET_ID: self._budgets(clean(scope.budget_id)),
                names.BUDGET_PER: scope.per,
            }
            if change.kind != "settled":
                counters["budget_events"].add(1, {**attributes, names.BUDGET_EVENT: change.kind})
                return
            used = change.amounts
            for key, amount in (
                ("budget_cost", used.nano_usd / 1e9),
                ("budget_tokens", used.tokens),
                ("budget_calls", used.calls),
            ):
                if amount:
                    counters[key].add(amount, attributes)
        except Exception as error:
            self._failures.note("budget_changed", error)

    def _forget_unregistered(self, operation_id: str, execution: HookExecution | None) -> None:
        """Drop an operation of another runtime that was unregistered."""
        unregistrations.unwatch(operation_id, self._forget_unregistered)
        self._end_hook_metrics(operation_id)
        self._operations.pop(operation_id, None)

    def _end_hook_metrics(self, operation_id: str) -> None:
        if self._hook_metrics:
            self._open.discard(operation_id)
            executions.unwatch(operation_id, self._receive_execution)


MEASURED = frozenset(MetricsHooks._actions)
"""The events of a segment that has begun of which something is measured."""
