"""Instrument runs: bundles that are called before and after the work of a run, such as telemetry.

A value such as the current span is seen by the code of a tool or a model call only if it is set in the task of the run,
before that work, and reset in the same task after it. Observers are called at other moments. So a run calls the bundles
of this kind around its work.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from time import perf_counter
from typing import Any

import msgspec

from hookline.calls import AddedContext, Call, Denial, Message, ModelCall, ModelResponse, ToolSpec
from hookline.hooks import Hooks

__all__ = [
    "AwaitedVerdicts",
    "EvaluationResult",
    "Instrumentation",
    "SegmentInfo",
    "StreamTimes",
    "await_verdicts",
    "awaited_verdicts",
]


class EvaluationResult(msgspec.Struct, frozen=True, kw_only=True):
    """A verdict on a run, by one metric.

    Attributes:
        name: The metric, one of few: `"output_contains"`, `"politeness"`.
        score: The score; `None` if there is only a label.
        label: The verdict in a word, one of few: `"pass"`, `"fail"`.
        explanation: The reason. It may quote the run, so it is content.
        check: What exactly was judged, if the metric does not say it: `"output contains '3 EUR'"`.
    """

    name: str
    score: float | None = None
    label: str = ""
    explanation: str = ""
    check: str = ""


ReceiveVerdicts = Callable[[Sequence[EvaluationResult]], None]
"""A function that is called once with the verdicts on a segment of a run; with none if there will be none."""


class AwaitedVerdicts:
    """The runs whose telemetry waits for verdicts; `await_verdicts` makes one."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[ReceiveVerdicts]] = {}

    def wait(self, operation_id: str, receive: ReceiveVerdicts) -> None:
        """Ask for the verdicts on a run that begins. Of several segments of one run, the latest gets them.

        Args:
            operation_id: The run.
            receive: Called once, at the latest when the block of `await_verdicts` ends. It must not raise.
        """
        self._waiting.setdefault(operation_id, []).append(receive)

    def give(self, operation_id: str, results: Sequence[EvaluationResult]) -> None:
        """Hand out the verdicts on a run that has ended."""
        for number, receive in enumerate(reversed(self._waiting.pop(operation_id, []))):
            receive(() if number else results)


_awaited: ContextVar[AwaitedVerdicts | None] = ContextVar("hookline_awaited_verdicts", default=None)


def awaited_verdicts() -> AwaitedVerdicts | None:
    """Return the verdicts that runs of the current context wait for; `None` outside of `await_verdicts`."""
    return _awaited.get()


@contextmanager
def await_verdicts() -> Iterator[AwaitedVerdicts]:
    """Let the telemetry of runs that begin in this block wait for verdicts on them.

    ```python
    with await_verdicts() as verdicts:
        result = await exec_agent(agent, "What does tea cost?", hooks=[TracingHooks()])
        verdicts.give(result.operation_id, [EvaluationResult(name="polite", score=0.9, label="pass")])
    ```

    The root span of such a run ends with the block, at the time at which the run ended.
    """
    awaited = AwaitedVerdicts()
    token = _awaited.set(awaited)
    try:
        yield awaited
    finally:
        _awaited.reset(token)
        for operation_id in list(awaited._waiting):
            awaited.give(operation_id, ())


class SegmentInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A segment of a run, at its start.

    Attributes:
        operation_id: The run.
        agent_id: The agent that runs.
        user_id: The user for whom it runs.
        tenant_id: The tenant for whom it runs.
        parent_operation_id: The run that called this one as a sub-agent.
        tags: The tags of the run.
        conversation_id: The session of the run.
        model: Name of the agent's model.
        provider: Provider of the model.
        resumed: Whether the operation has waited for a person.
        traceparents: The `traceparent`s of the operation's first and latest segments, if they were traced.
        waiting_since_unix_nano: When it started to wait for a person.
        llm_calls: Model calls in earlier segments.
        tool_calls: Tool calls in earlier segments.
        input_tokens: Input tokens of earlier segments.
        output_tokens: Output tokens of earlier segments.
        input: The input of the segment; empty on a resume.
        instructions: The system message.
        tools: The tools that the model can call.
        dispatcher: The dispatcher that calls the run's observers.
    """

    operation_id: str
    agent_id: str
    user_id: str = ""
    tenant_id: str = ""
    parent_operation_id: str | None = None
    tags: tuple[str, ...] = ()
    conversation_id: str | None = None
    model: str = ""
    provider: str = ""
    resumed: bool = False
    traceparents: tuple[str, ...] = ()
    waiting_since_unix_nano: int | None = None
    llm_calls: int = 0
    tool_calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    input: Sequence[Message] = ()
    instructions: str = ""
    tools: Sequence[ToolSpec] = ()
    dispatcher: Any = None


class StreamTimes:
    """The times of one streamed answer of a model; it is created when the model is asked.

    Attributes:
        first: Seconds from the request to the first piece; `None` if none has arrived.
        between: Seconds from each piece to the next.
    """

    __slots__ = ("_latest", "between", "first")

    def __init__(self) -> None:
        self._latest = perf_counter()
        self.first: float | None = None
        self.between: list[float] = []

    def note_piece(self) -> None:
        """Note that a piece of the answer has arrived."""
        now = perf_counter()
        if self.first is None:
            self.first = now - self._latest
        else:
            self.between.append(now - self._latest)
        self._latest = now


class Instrumentation(Hooks):
    """A bundle that is also called before and after the work of a run.

    These methods must not raise, wait or take long. Each pair is called in one task and one context. The bundle's own
    handlers have no `HookExecution`.
    """

    recorded = False
    encloses: frozenset[type[Call]] = frozenset()
    """The calls for which `enter` and `leave` are called."""

    def begin(self, segment: SegmentInfo) -> tuple[Any, Hooks | None]:
        """Handle the beginning of a segment, before its first event.

        Returns:
            A value for `end`, and the bundle whose observers get the events of this segment: usually this one. `None`
            if the segment has no need of this one, which is then not called for its calls either.
        """
        return None, self

    def attach(self, begun: Any) -> None:
        """Change the context of the run's task, after every bundle has begun."""

    def end(self, begun: Any) -> None:
        """Handle the end of a segment, after its lanes are drained."""

    def carried(self, begun: Any) -> str | None:
        """Return the W3C `traceparent` to store, for later segments to link to."""
        return None

    def enter(self, call: Call) -> Any:
        """Handle the beginning of a call's own work: a step, a model call, a tool, a sub-agent, a compaction.

        Returns:
            A value for `leave`.
        """
        return None

    def leave(self, entered: Any, result: object, error: BaseException | None) -> None:
        """Handle the end of a call's own work, with its result or its exception."""

    def streamed(self, call: ModelCall, times: StreamTimes) -> None:
        """Handle the end of a streamed answer, whole or not, before `leave`; of a call that is retried, of each one."""

    def reported(self, call: ModelCall, response: ModelResponse, *, provider: str, times: tuple[int, int]) -> None:
        """Handle a model call that ended earlier, which the framework reports late, without `enter` and `leave`.

        Args:
            call: The call, without its messages.
            response: The answer, without its text.
            provider: The provider of the model; empty if it is not known.
            times: When the call began and ended, in nanoseconds since 1970.
        """

    def answered(self, call: Call, hook_id: str) -> None:
        """Handle the answer of a hook in place of a call, which will not happen."""

    def guided(self, call: ModelCall, hook_id: str, feedback: str) -> None:
        """Handle a `Guide` of a hook: the answer of the call is discarded, and the model is asked again."""

    def context_added(self, call: Call, added: AddedContext) -> None:
        """Handle a text that a hook has added to a call for the model."""

    def refused(self, call: Call, denial: Denial, *, cause: BaseException | None, ran: bool, stop: bool) -> None:
        """Handle the denial of a call by a hook, before its events.

        Args:
            call: The call.
            denial: The hook that denied it, and its reason.
            cause: The failure of the hook, if it did not decide but fail.
            ran: Whether the call has happened all the same, and only its result is withheld.
            stop: Whether the run ends because of it.
        """
