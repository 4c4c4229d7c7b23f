"""Hooks that speak the dialect of a coding agent: ask them at our points, and turn what they answer into decisions."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from hookline._readonly import read_only
from hookline.calls import (
    AgentCall,
    AgentResult,
    Ask,
    Call,
    Continue,
    Deny,
    SubAgentCall,
    ToolCall,
    ToolResult,
)
from hookline.dialects import DIALECTS, Dialect, HostAnswer, HostQuestion, build_question, matches, report_answer
from hookline.dialects import parse_answer as parse_host_answer
from hookline.events import Event
from hookline.registry._definition import HookDefinition, Point
from hookline.registry._errors import ScriptError

__all__ = ["HostScriptResult", "build_host_handler", "mask"]

logger = logging.getLogger("hookline")

MOST_OPERATIONS = 10_000
"""Operations of which a hook remembers that it has met them; the oldest are forgotten."""
MASK = "[redacted]"


class HostScriptResult(NamedTuple):
    """The output and the end of a script.

    Attributes:
        exit_code: Its exit code; negative if a signal ended it.
        stdout: Its output.
        stderr: Its errors.
        secrets: The values of environment variables that it saw, which no text may repeat.
    """

    exit_code: int
    stdout: bytes
    stderr: bytes
    secrets: Sequence[str] = ()


RunScript = Callable[[HookDefinition, dict[str, Any]], Awaitable[HostScriptResult]]


def build_host_handler(
    definition: HookDefinition, point: Point, run: RunScript, *, to_wire: Callable[[Any], Any]
) -> Callable[..., Awaitable[Any]]:
    """Build the handler of a definition whose script speaks another dialect.

    Args:
        definition: A checked definition.
        point: Its point.
        run: Asks the script; raises a `ScriptError` if it does not end by itself.
        to_wire: Converts a call or a result to JSON values.
    """
    hook = _HostHook(definition, point, run, to_wire)
    return hook.observe if point.event is not None else hook.judge_result if point.kind == "after" else hook.judge


def mask(text: str, secrets: Sequence[str]) -> str:
    """Return a text in which no value of a secret environment variable stands."""
    for secret in secrets:
        text = text.replace(secret, MASK)
    return text


class _HostHook:
    """The hook of a definition, which asks its script at one point."""

    def __init__(self, definition: HookDefinition, point: Point, run: RunScript, to_wire: Callable[[Any], Any]) -> None:
        self._definition = definition
        self._dialect: Dialect = DIALECTS[definition.dialect]
        self._point = point
        self._run = run
        self._to_wire = to_wire
        self._met: OrderedDict[str, bool] = OrderedDict()

    async def judge(self, call: Call) -> Any:
        """Ask about a call before it runs."""
        question = self._build(self._to_wire(call))
        if question is None or (question.event.name == "SessionStart" and not self._is_first(call.operation_id)):
            return None
        answer = await self._ask(question)
        if answer.decision == "deny":
            self._pass_on(call, answer.context)
            return Deny(answer.reason or f"Denied by {self._definition.id}.", stop=answer.stop)
        if answer.decision == "ask":
            if answer.args is not None:
                logger.warning(
                    "Hook %r asks a person, who decides about the arguments as they are; its changes are ignored",
                    self._definition.id,
                )
            self._pass_on(call, answer.context)
            return Ask(answer.reason or f"{self._definition.id} wants a person to decide.")
        if answer.args is not None and self._point.kind == "guard":
            self._fail("invalid_answer", f"a hook at {self._point.name} cannot change the call; use a `before`")
        if isinstance(call, SubAgentCall):
            return self._change_instruction(call, answer)
        self._pass_on(call, answer.context)
        if isinstance(call, ToolCall) and answer.args is not None:
            return msgspec.structs.replace(call, args=read_only(answer.args))
        return None

    async def judge_result(self, call: Call, result: Any) -> Any:
        """Ask about a call that has run, and its result."""
        operation_id = call.operation_id
        question = self._build(self._to_wire(call), self._to_wire(result), active=operation_id in self._met)
        if question is None:
            return None
        answer = await self._ask(question)
        blocks = answer.decision == "deny" and not answer.stop
        if isinstance(call, AgentCall):
            if blocks:
                self._is_first(operation_id)
                self._pass_on(call, answer.context)
                return Continue(answer.reason or f"{self._definition.id} wants the run to go on.")
            return None
        if isinstance(result, ToolResult | AgentResult):
            return self._change_result(call, result, answer)
        return None

    async def observe(self, event: Event) -> None:
        """Tell of an event; the answer decides nothing."""
        wire = msgspec.to_builtins(event, enc_hook=str)
        if self._definition.host_event != "PermissionRequest":
            await self._tell(wire)
            return
        for pending in wire["pendingTools"]:
            await self._tell({**wire, "pendingTools": [pending]})

    async def _tell(self, wire: Mapping[str, Any]) -> None:
        question = self._build(wire)
        if question is not None:
            answer = await self._ask(question)
            if answer.decision:
                logger.warning(
                    "Hook %r decided about %s, which only tells it of what happens",
                    self._definition.id,
                    question.event.name,
                )

    def _build(
        self, wire: Mapping[str, Any], result: Mapping[str, Any] | None = None, *, active: bool = False
    ) -> HostQuestion | None:
        """Return the question about a call or event; `None` if the hook is not for it."""
        definition = self._definition
        question = build_question(
            self._dialect,
            self._point.name,
            wire,
            result,
            host_event=definition.host_event,
            stop_hook_active=active,
        )
        meant = question.applies and matches(self._dialect, definition.matcher, question.subject)
        return question if meant else None

    async def _ask(self, question: HostQuestion) -> HostAnswer:
        """Run the script and read its answer.

        Raises:
            ScriptError: If the answer does not count.
        """
        definition = self._definition
        ended = await self._run(definition, question.document)
        answer = parse_host_answer(self._dialect, question.event.name, ended.stdout, ended.stderr, ended.exit_code)
        if ended.secrets:
            answer = answer._replace(
                reason=mask(answer.reason, ended.secrets),
                context=mask(answer.context, ended.secrets),
                message=mask(answer.message, ended.secrets),
                problem=mask(answer.problem, ended.secrets),
            )
        report_answer(definition.id, answer)
        fault = answer.find_fault(closed=definition.on_error == "closed", judges=self._point.call is not None)
        if fault:
            self._fail(answer.failure or "invalid_answer", fault)
        if answer.failure:
            logger.warning("The script of hook %r failed, but its answer counts: %s", definition.id, answer.problem)
        return answer

    def _fail(self, code: Any, problem: str) -> None:
        """Report that an answer does not count.

        Raises:
            ScriptError: Always.
        """
        failure = ScriptError(self._definition.id, code, problem)
        logger.warning("%s", failure)
        raise failure

    def _change_instruction(self, call: SubAgentCall, answer: HostAnswer) -> SubAgentCall | None:
        """Return the call of a sub-agent with what the hook changed or added to its instruction."""
        prompt = (answer.args or {}).get("prompt")
        instruction = prompt if isinstance(prompt, str) else call.instruction
        if answer.context:
            instruction = f"{instruction}\n\n{answer.context}"
        return None if instruction == call.instruction else msgspec.structs.replace(call, instruction=instruction)

    def _change_result(self, call: Call, result: ToolResult | AgentResult, answer: HostAnswer) -> Any:
        """Return the result of a tool or a sub-agent as the hook changed it, or a denial that withholds it."""
        self._pass_on(call, answer.context)
        reason = answer.reason or f"Blocked by {self._definition.id}."
        if answer.decision == "deny" and (answer.stop or self._dialect.replaces_result):
            return Deny(reason, stop=answer.stop)
        field = "content" if isinstance(result, ToolResult) else "output"
        text = given = getattr(result, field)
        if answer.result is not None:
            text = answer.result
        if answer.decision == "deny":
            text = f"{text}\n\n{reason}"
        return None if text == given else msgspec.structs.replace(result, **{field: text})

    def _pass_on(self, call: Call, context: str) -> None:
        """Add the text that a hook has for the model, its `additionalContext`, to a call."""
        if context and isinstance(call, ToolCall | AgentCall):
            call.add_context(context)
        elif context:
            logger.info("Hook %r has context for the model, which this call cannot take", self._definition.id)

    def _is_first(self, operation_id: str) -> bool:
        """Return whether the hook meets an operation for the first time, and remember it."""
        if operation_id in self._met:
            return False
        self._met[operation_id] = True
        if len(self._met) > MOST_OPERATIONS:
            self._met.popitem(last=False)
        return True
