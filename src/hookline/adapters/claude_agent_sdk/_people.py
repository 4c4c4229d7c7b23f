"""What people are asked about the tool calls of Claude, and what they decide.

Claude asks the caller's `can_use_tool` and hooks on `PermissionRequest` while it waits. A hook on `PreToolUse` that
says `"defer"` ends the task instead, and the hooks of the task that takes the session up again say what was decided.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import anyio.lowlevel
from claude_agent_sdk import ClaudeAgentOptions, PermissionResultAllow, PermissionResultDeny, ToolPermissionContext

from hookline.adapters.claude_agent_sdk import _words as words
from hookline.calls import ToolRequest
from hookline.events import BeforeHumanIntervention, PendingTool, ToolOutcome
from hookline.runtime import AdapterRun, Approve, Reject

__all__ = ["People"]

Lead = Callable[[dict[str, Any]], Awaitable[dict[str, Any] | str]]


class People:
    """Those who are asked about the calls of one task.

    Args:
        options: The options of the caller.

    Attributes:
        stopped: Whether one of them has ended the task.
    """

    def __init__(self, options: ClaudeAgentOptions) -> None:
        self._can_use_tool: Any = options.can_use_tool
        self._hooked = bool((options.hooks or {}).get("PreToolUse"))
        self.stopped = False
        self._listening: dict[str, list[tuple[anyio.Event, dict[str, Any]]]] = {}
        self._asked: dict[str, AdapterRun] = {}
        self._decided: set[str] = set()
        self._prompts: dict[str, PendingTool] = {}
        self._leads: dict[str, Lead] = {}

    # Hooks of the caller.

    async def listen(self, hook: Any, given: Any, call_id: str | None, context: Any) -> Any:
        """Call a hook of the caller on `PreToolUse`, and note what it decides."""
        over, answer = anyio.Event(), dict[str, Any]()
        self._listening.setdefault(call_id or given["tool_use_id"], []).append((over, answer))
        try:
            output = await hook(given, call_id, context)
            answer.update(words.decision_of(output))
            return output
        finally:
            over.set()

    async def heard(self, call_id: str) -> dict[str, Any]:
        """What the caller's hooks that are under way decide about a call: the strictest of them."""
        found: dict[str, Any] = {}
        if self._hooked:
            await anyio.lowlevel.checkpoint()  # Claude names them first, but trio starts tasks in any order
        for over, answer in self._listening.pop(call_id, ()):
            await over.wait()
            if words.STRICT.index(answer.get("decision", "")) > words.STRICT.index(found.get("decision", "")):
                found = answer
        return found

    async def request(self, hook: Any, run: AdapterRun, given: Any, call_id: str | None, context: Any) -> Any:
        """Call a hook of the caller on `PermissionRequest`, which does not say which call it is about."""
        name, args = given["tool_name"], given["tool_input"]
        known = call_id or _named(run, name, args)
        self._asks(run, known, name, args, "")
        output = await hook(given, call_id, context)
        decision = (output.get("hookSpecificOutput") or {}).get("decision") or {}
        if decision.get("behavior") == "allow":
            self._decides(run, Approve(known))
        elif decision.get("behavior") == "deny":
            self._refuses(run, known, name, decision.get("message") or "", stops=bool(decision.get("interrupt")))
        return output

    # The question of Claude, and that of a hook of hookline.

    def will_ask(self, call_id: str, asked: PendingTool, lead: Lead) -> None:
        """A hook has asked about a call: it is led further once it is approved.

        Args:
            call_id: The call.
            asked: What the person is shown.
            lead: Leads it to the tool; returns its arguments, or why hooks refused it after all.
        """
        self._prompts[call_id], self._leads[call_id] = asked, lead

    async def ask(self, run: AdapterRun, name: str, args: dict[str, Any], context: Any) -> Any:
        """Ask the caller's `can_use_tool`, for Claude or for a hook, and tell both events."""
        call_id = context.tool_use_id or ""
        prompt = context.decision_reason or context.title or ""
        self._asks(run, call_id, name, args, prompt)
        answer = await self._can_use_tool(name, args, context)
        if not isinstance(answer, PermissionResultAllow):
            self._leads.pop(call_id, None)
            if isinstance(answer, PermissionResultDeny):
                self._refuses(run, call_id, name, answer.message, stops=answer.interrupt)
            return answer
        self._decides(run, Approve(call_id))
        lead = self._leads.pop(call_id, None)
        if lead is None:
            return answer
        final = await lead(args if answer.updated_input is None else answer.updated_input)
        if isinstance(final, str):
            return PermissionResultDeny(message=final)
        return dataclasses.replace(answer, updated_input=final)

    async def ask_for(self, run: AdapterRun, name: str, args: dict[str, Any], asked: PendingTool) -> Any:
        """Ask the caller about a call of a tool of this process, which Claude takes for begun."""
        self._prompts[asked.tool_call_id] = asked
        context = ToolPermissionContext(tool_use_id=asked.tool_call_id, decision_reason=asked.prompt)
        return await self.ask(run, name, args, context)

    # A task that ends to wait, and the one that goes on.

    def waits(self, run: AdapterRun, call_id: str) -> bool:
        """Whether the run goes on with a call that was waiting."""
        return call_id not in self._decided and any(each.tool_call_id == call_id for each in run.run.pending)

    def resumes(self, run: AdapterRun, calling: ToolRequest, decided: Mapping[str, Any]) -> bool:
        """The caller's hooks have decided about a call that was waiting; whether it is to be led."""
        run.begin_step()
        if decided.get("decision") != "deny":
            self._decides(run, Approve(calling.tool_call_id))
            return True
        reject = Reject(calling.tool_call_id, reason=decided["reason"], and_continue=not decided["stops"])
        self._decides(run, reject)
        if reject.and_continue:
            run.refused(calling, reject)
        return False

    # What is told.

    def _asks(self, run: AdapterRun, call_id: str, name: str, args: dict[str, Any], prompt: str) -> None:
        if call_id in self._asked:
            return
        self._asked[call_id] = run
        pending = self._prompts.pop(call_id, None) or words.pending(name, args, call_id, prompt)
        if run.run.hooked(BeforeHumanIntervention):
            run.run.tell(BeforeHumanIntervention(**run.run.ids, step_index=run.step.index, pending_tools=[pending]))

    def _decides(self, run: AdapterRun, decision: Approve | Reject) -> None:
        if decision.tool_call_id in self._decided:
            return
        self._decided.add(decision.tool_call_id)
        run.decided([decision])
        self.stopped = self.stopped or (isinstance(decision, Reject) and not decision.and_continue)

    def _refuses(self, run: AdapterRun, call_id: str, name: str, reason: str, *, stops: bool) -> None:
        self._decides(run, Reject(call_id, reason=reason, and_continue=not stops))
        toolset, tool_name = words.split(name)
        run.step.outcomes[call_id] = ToolOutcome(
            toolset=toolset, tool_name=tool_name, tool_call_id=call_id, content=reason, success=False
        )


def _named(run: AdapterRun, name: str, args: Any) -> str:
    """The call of the step that has this name and these arguments."""
    for each in run.step.calling:
        if words.split(name) == (each.toolset, each.tool_name) and each.args == args:
            return each.tool_call_id
    return ""
