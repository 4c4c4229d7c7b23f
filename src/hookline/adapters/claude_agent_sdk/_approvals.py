"""Ask people about Claude's tool calls, and record what they decide.

Claude asks the caller's `can_use_tool` and `PermissionRequest` hooks while the call waits. A `PreToolUse` hook that
answers `"defer"` ends the task instead; the hooks of the task that resumes the session then give the decision.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import anyio.lowlevel
from claude_agent_sdk import ClaudeAgentOptions, PermissionResultAllow, PermissionResultDeny, ToolPermissionContext

from hookline.adapters.claude_agent_sdk import _conversion as convert
from hookline.calls import ToolRequest
from hookline.events import BeforeHumanIntervention, PendingTool, ToolOutcome
from hookline.runtime import AdapterRun, Approve, Reject

__all__ = ["ApprovalQuestions"]

ResumeCall = Callable[[dict[str, Any]], Awaitable[dict[str, Any] | str]]


class ApprovalQuestions:
    """The questions about tool calls of one task, and the decisions on them.

    Args:
        options: The options of the caller.

    Attributes:
        stopped: Whether a person ended the task.
    """

    def __init__(self, options: ClaudeAgentOptions) -> None:
        self._can_use_tool: Any = options.can_use_tool
        self._has_hooks = bool((options.hooks or {}).get("PreToolUse"))
        self.stopped = False
        self._running_hooks: dict[str, list[tuple[anyio.Event, dict[str, Any]]]] = {}
        self._asked: dict[str, AdapterRun] = {}
        self._decided: set[str] = set()
        self._prompts: dict[str, PendingTool] = {}
        self._resumes: dict[str, ResumeCall] = {}

    # Hooks of the caller.

    async def call_pre_tool_hook(self, hook: Any, given: Any, call_id: str | None, context: Any) -> Any:
        """Call a `PreToolUse` hook of the caller and keep its decision."""
        ended, answer = anyio.Event(), dict[str, Any]()
        self._running_hooks.setdefault(call_id or given["tool_use_id"], []).append((ended, answer))
        try:
            output = await hook(given, call_id, context)
            answer.update(convert.decision_of(output))
            return output
        finally:
            ended.set()

    async def strictest_decision(self, call_id: str) -> dict[str, Any]:
        """Wait for the caller's hooks on a call and return the strictest of their decisions."""
        found: dict[str, Any] = {}
        if self._has_hooks:
            await anyio.lowlevel.checkpoint()  # Claude lists these hooks first, but trio starts tasks in any order
        for ended, answer in self._running_hooks.pop(call_id, ()):
            await ended.wait()
            if convert.BY_STRICTNESS.index(answer.get("decision", "")) > convert.BY_STRICTNESS.index(
                found.get("decision", "")
            ):
                found = answer
        return found

    async def call_permission_hook(
        self, hook: Any, run: AdapterRun, given: Any, call_id: str | None, context: Any
    ) -> Any:
        """Call a `PermissionRequest` hook of the caller, which is not told the call's id, and record its decision."""
        name, args = given["tool_name"], given["tool_input"]
        known = call_id or _find_call_id(run, name, args)
        self._report_question(run, known, name, args, "")
        output = await hook(given, call_id, context)
        decision = (output.get("hookSpecificOutput") or {}).get("decision") or {}
        if decision.get("behavior") == "allow":
            self._record_decision(run, Approve(known))
        elif decision.get("behavior") == "deny":
            self._record_refusal(run, known, name, decision.get("message") or "", stops=bool(decision.get("interrupt")))
        return output

    # The question of Claude, and that of a hook of hookline.

    def register_question(self, call_id: str, asked: PendingTool, resume: ResumeCall) -> None:
        """Remember that a hook asks about a call, and how to run the call once it is approved.

        Args:
            call_id: The call.
            asked: The question that the person is shown.
            resume: Runs the remaining hooks up to the tool; returns its arguments, or the reason if they refuse it.
        """
        self._prompts[call_id], self._resumes[call_id] = asked, resume

    async def ask(self, run: AdapterRun, name: str, args: dict[str, Any], context: Any) -> Any:
        """Ask the caller's `can_use_tool`, for Claude or for a hook, and emit the two events."""
        call_id = context.tool_use_id or ""
        prompt = context.decision_reason or context.title or ""
        self._report_question(run, call_id, name, args, prompt)
        answer = await self._can_use_tool(name, args, context)
        if not isinstance(answer, PermissionResultAllow):
            self._resumes.pop(call_id, None)
            if isinstance(answer, PermissionResultDeny):
                self._record_refusal(run, call_id, name, answer.message, stops=answer.interrupt)
            return answer
        self._record_decision(run, Approve(call_id))
        resume = self._resumes.pop(call_id, None)
        if resume is None:
            return answer
        final = await resume(args if answer.updated_input is None else answer.updated_input)
        if isinstance(final, str):
            return PermissionResultDeny(message=final)
        return dataclasses.replace(answer, updated_input=final)

    async def ask_for(self, run: AdapterRun, name: str, args: dict[str, Any], asked: PendingTool) -> Any:
        """Ask about a call of an in-process tool, which Claude regards as running already."""
        self._prompts[asked.tool_call_id] = asked
        context = ToolPermissionContext(tool_use_id=asked.tool_call_id, decision_reason=asked.prompt)
        return await self.ask(run, name, args, context)

    # A task that ends while a call waits, and the task that resumes it.

    def is_waiting(self, run: AdapterRun, call_id: str) -> bool:
        """Return whether a call was left waiting by the task that this run resumes."""
        return call_id not in self._decided and any(each.tool_call_id == call_id for each in run.run.pending)

    def apply_decision(self, run: AdapterRun, calling: ToolRequest, decided: Mapping[str, Any]) -> bool:
        """Record the decision of the caller's hooks about a waiting call; return whether the call should run."""
        run.begin_step()
        if decided.get("decision") != "deny":
            self._record_decision(run, Approve(calling.tool_call_id))
            return True
        reject = Reject(calling.tool_call_id, reason=decided["reason"], and_continue=not decided["stops"])
        self._record_decision(run, reject)
        if reject.and_continue:
            run.refused(calling, reject)
        return False

    # Events and records.

    def _report_question(self, run: AdapterRun, call_id: str, name: str, args: dict[str, Any], prompt: str) -> None:
        if call_id in self._asked:
            return
        self._asked[call_id] = run
        pending = self._prompts.pop(call_id, None) or convert.to_pending_tool(name, args, call_id, prompt)
        if run.run.hooked(BeforeHumanIntervention):
            run.run.emit(BeforeHumanIntervention(**run.run.ids, step_index=run.step.index, pending_tools=[pending]))

    def _record_decision(self, run: AdapterRun, decision: Approve | Reject) -> None:
        if decision.tool_call_id in self._decided:
            return
        self._decided.add(decision.tool_call_id)
        run.decided([decision])
        self.stopped = self.stopped or (isinstance(decision, Reject) and not decision.and_continue)

    def _record_refusal(self, run: AdapterRun, call_id: str, name: str, reason: str, *, stops: bool) -> None:
        self._record_decision(run, Reject(call_id, reason=reason, and_continue=not stops))
        toolset, tool_name = convert.split_tool_name(name)
        run.step.outcomes[call_id] = ToolOutcome(
            toolset=toolset, tool_name=tool_name, tool_call_id=call_id, content=reason, success=False
        )


def _find_call_id(run: AdapterRun, name: str, args: Any) -> str:
    """Return the id of the step's call with this name and these arguments; `""` if there is none."""
    for each in run.step.calling:
        if convert.split_tool_name(name) == (each.toolset, each.tool_name) and each.args == args:
            return each.tool_call_id
    return ""
