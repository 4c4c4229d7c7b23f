"""The points of a run and of its model calls: startup, input, model calls, output, shutdown."""

from __future__ import annotations

from agent_hooks import InterceptionPoint
from msgspec.structs import replace

from hookline.adapters._agent_hooks_desk import Desk
from hookline.adapters._agent_hooks_errors import PolicyTransformError
from hookline.adapters._agent_hooks_session import Session
from hookline.adapters._agent_hooks_wire import messages_from, response_from, text_of
from hookline.calls import AgentCall, AgentResult, Deny, Message, ModelCall, ModelResponse
from hookline.errors import HookUsageError
from hookline.events import OnComplete

__all__ = ["RunPoints"]


class RunPoints:
    """Judges a run and its model calls.

    Args:
        desk: Where.
    """

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def start(self, call: AgentCall) -> AgentCall | Deny | None:
        """Before a run, and before it goes on with more input: `agent_startup` once, `input` for what a user says."""
        desk = self._desk
        session = desk.sessions.of(call)
        if desk.key in call.metadata:
            raise HookUsageError(
                f"Two bundles of policies with the id {desk.id!r} are in one run. Give a bundle once, to the agent or "
                "to the run, or give each an id of its own."
            )
        session.take_up(call.metadata.setdefault(desk.key, {}))
        if not session.started:
            denial = await self._startup(session, call)
            if denial is not None:
                return denial
        if InterceptionPoint.INPUT not in desk.points:
            return None
        messages = list(call.input)
        for at, message in enumerate(messages):
            if message.role != "user":
                continue
            judged = await self._input(session, message)
            if isinstance(judged, Deny):
                return judged
            messages[at] = judged
        return None if messages == call.input else replace(call, input=messages)

    async def take_up(self, call: AgentCall) -> Deny | None:
        """Go on after a pause; a run that began without these policies starts for them now."""
        desk = self._desk
        session = desk.sessions.of(call)
        if session.started:
            return None
        known = desk.key in call.metadata
        session.take_up(call.metadata.setdefault(desk.key, {}))
        if known:
            session.started = True
            return None
        return await self._startup(session, call)

    async def output(self, call: AgentCall, result: AgentResult) -> AgentResult | Deny | None:
        """After a run: `output`, before anybody gets it."""
        desk = self._desk
        if result.reason != "done" and not result.output:
            return None
        session = desk.sessions.of(call)
        context = session.output(result.output)
        judgement = await desk.emissions.judge(context)
        denial = desk.ended(session, judgement)
        if denial is not None or not judgement.transformed:
            return denial
        try:
            return replace(result, output=text_of("output", judgement.target))
        except PolicyTransformError as error:
            return desk.unusable(session, error, context, ends=True)

    async def shut_down(self, event: OnComplete) -> None:
        """At the end of an operation, whatever it came to: `agent_shutdown`."""
        desk = self._desk
        session = desk.sessions.find(event.operation_id)
        if session is not None and session.started and event.reason != "waiting_for_human":
            await desk.emissions.judge(session.shutdown(event))

    async def before_model(self, call: ModelCall) -> ModelCall | Deny | None:
        """Before a model is asked: `pre_model_call`."""
        desk = self._desk
        session = desk.sessions.of(call)
        call.metadata[desk.key] = True
        context = session.before_model(call)
        judgement = await desk.emissions.judge(context)
        denial = desk.ended(session, judgement)
        if denial is not None or not judgement.transformed:
            return denial
        try:
            return replace(call, messages=messages_from("pre_model_call", judgement.target, call.messages))
        except PolicyTransformError as error:
            return desk.unusable(session, error, context, ends=True)

    async def after_model(self, call: ModelCall, response: ModelResponse) -> ModelResponse | Deny | None:
        """After it has answered: `post_model_call`."""
        desk = self._desk
        if InterceptionPoint.PRE_MODEL_CALL in desk.points and desk.key not in call.metadata:
            return None  # a hook answered before the model's turn came
        session = desk.sessions.of(call)
        context = session.after_model(call, response)
        judgement = await desk.emissions.judge(context)
        denial = desk.ended(session, judgement)
        if denial is not None or not judgement.transformed:
            return denial
        try:
            return response_from("post_model_call", judgement.target, response)
        except PolicyTransformError as error:
            return desk.unusable(session, error, context, ends=True)

    async def _startup(self, session: Session, call: AgentCall) -> Deny | None:
        desk = self._desk
        session.started = True
        if InterceptionPoint.AGENT_STARTUP not in desk.points:
            return None
        judgement = await desk.emissions.judge(session.startup(call.tools))
        return desk.ended(session, judgement)

    async def _input(self, session: Session, message: Message) -> Message | Deny:
        desk = self._desk
        context = session.input(message)
        judgement = await desk.emissions.judge(context)
        denial = desk.ended(session, judgement)
        if denial is not None or not judgement.transformed:
            return denial or message
        try:
            if judgement.target.get("role") != "user":
                raise PolicyTransformError("input", "the `role` of an input stays what it is")
            return replace(message, content=text_of("input", judgement.target))
        except PolicyTransformError as error:
            return desk.unusable(session, error, context, ends=True)
