"""The points of tool calls, and of calls of sub-agents, which are tools to a policy."""

from __future__ import annotations

import json
from typing import Any

from agent_hooks import InterceptionPoint
from msgspec.structs import replace

from hookline.adapters._agent_hooks_desk import Desk
from hookline.adapters._agent_hooks_emitting import Judgement, Replay
from hookline.adapters._agent_hooks_errors import PolicyTransformError
from hookline.adapters._agent_hooks_session import Session
from hookline.adapters._agent_hooks_wire import args_from, bound, content_of, still_bound
from hookline.calls import AgentResult, Ask, Deny, SubAgentCall, ToolCall, ToolResult

__all__ = ["ToolPoints"]


class ToolPoints:
    """Judges tool calls.

    Args:
        desk: Where.
    """

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def before_tool(self, call: ToolCall) -> ToolCall | Deny | None:
        """Before a tool is called: `pre_tool_call`."""
        desk = self._desk
        session = desk.sessions.of(call)
        judgement, context = await self._judge(session, call)
        if judgement.denied and not self._asks(judgement):
            return desk.denied(judgement)
        if not judgement.transformed:
            return None
        try:
            final = replace(call, args=args_from(judgement.target))
        except PolicyTransformError as error:
            return desk.unusable(session, error, context)
        call.metadata[desk.key]["judged"] = bound(final)
        return final

    async def approve(self, call: ToolCall) -> Ask | Deny | None:
        """Ask a person where the policies want it; judge what they have not judged like this; finish after a pause."""
        desk = self._desk
        session = desk.sessions.of(call)
        noted = call.metadata.get(desk.key)
        if noted is None or not still_bound(noted["judged"], call):
            judgement, context = await self._judge(session, call)
            if judgement.denied and not self._asks(judgement):
                return desk.denied(judgement)
            if judgement.transformed:
                error = PolicyTransformError("pre_tool_call", "nothing may change the arguments any more")
                return desk.unusable(session, error, context)
            noted = call.metadata[desk.key]
        if "waiting" not in noted:
            return None
        prompt = session.asking.pop(call.tool_call_id, None)
        if prompt is not None or not session.resumed:
            return Ask(prompt or "a policy wants a person to decide")
        return await self._finish(session, call, noted.pop("waiting"))

    async def after_tool(self, call: ToolCall, result: ToolResult) -> ToolResult | Deny | None:
        """After it has answered: `post_tool_call`."""
        desk = self._desk
        if InterceptionPoint.PRE_TOOL_CALL in desk.points and desk.key not in call.metadata:
            return None  # a hook answered before the tool's turn came
        session = desk.sessions.of(call)
        context = session.after_tool(call, result)
        judgement = await desk.emissions.judge(context)
        if judgement.denied:
            return desk.denied(judgement)
        return replace(result, content=content_of(judgement.target)) if judgement.transformed else None

    async def before_agent(self, call: SubAgentCall) -> SubAgentCall | Deny | None:
        """Before a sub-agent is called: `pre_tool_call`."""
        desk = self._desk
        session = desk.sessions.of(call)
        call.metadata[desk.key], context = session.before_agent(call)
        judgement = await desk.emissions.judge(context)
        if judgement.denied:
            return desk.denied(judgement)
        if not judgement.transformed:
            return None
        try:
            args = args_from(judgement.target)
            if set(args) != {"instruction"} or not isinstance(args["instruction"], str):
                raise PolicyTransformError("pre_tool_call", "a sub-agent takes an `instruction`, which is text")
            return replace(call, instruction=args["instruction"])
        except PolicyTransformError as error:
            return desk.unusable(session, error, context)

    async def after_agent(self, call: SubAgentCall, result: AgentResult) -> AgentResult | Deny | None:
        """After it has answered: `post_tool_call`."""
        desk = self._desk
        session = desk.sessions.of(call)
        call_id = call.metadata.get(desk.key)
        if call_id is None:
            if InterceptionPoint.PRE_TOOL_CALL in desk.points:
                return None
            call_id, _ = session.before_agent(call)
        context = session.after_agent(call, call_id, result.output, failed=result.reason != "done")
        judgement = await desk.emissions.judge(context)
        if judgement.denied:
            return desk.denied(judgement)
        return replace(result, output=content_of(judgement.target)) if judgement.transformed else None

    async def _judge(self, session: Session, call: ToolCall) -> tuple[Judgement, dict[str, Any]]:
        """Judge a call, and note on it what has to be known after a pause."""
        desk = self._desk
        context = session.before_tool(call)
        judged = dict(context)  # the emitter puts what it transforms into the other one
        replay = Replay() if desk.asks else None
        judgement = await desk.emissions.judge(context, replay=replay)
        noted: dict[str, Any] = {"judged": bound(call)}
        call.metadata[desk.key] = noted
        session.asking.pop(call.tool_call_id, None)
        if replay is not None and self._asks(judgement):
            noted["waiting"] = json.dumps({"context": judged, "verdicts": replay.verdicts})
            session.asking[call.tool_call_id] = judgement.reason
        return judgement, judged

    async def _finish(self, session: Session, call: ToolCall, waiting: str) -> Deny | None:
        """A person has approved: what the policies have said counts, and those that were not heard are asked now."""
        desk = self._desk
        earlier = json.loads(waiting)
        context = session.again(earlier["context"])
        judgement = await desk.emissions.finish(context, earlier["verdicts"])
        if judgement.denied:
            return desk.denied(judgement)
        try:
            if not still_bound(bound(replace(call, args=args_from(judgement.target))), call):
                raise PolicyTransformError("pre_tool_call", "a person has approved the arguments as they were")
        except PolicyTransformError as error:
            return desk.unusable(session, error, context)
        return None

    def _asks(self, judgement: Judgement) -> bool:
        return self._desk.asks and judgement.liftable
