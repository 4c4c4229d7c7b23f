"""Run the contract's conformance kit against hookline: each vector is an ordinary `exec_agent`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec
from agent_hooks import (
    ApprovalResolver,
    CompositionConfig,
    EnforcementMode,
    HostRegistry,
    HostSurface,
    IdentityProvider,
    Interceptor,
)
from agent_hooks.ctk import Capability, RunOutcome, RunRecord, Scenario, redact_paths

from hookline.adapters.agent_hooks._policies import PolicyHooks
from hookline.calls import Message, ModelResponse, ToolRequest, ToolResult
from hookline.runtime import Agent, OperationResult, ScriptedModel, Tool, exec_agent

__all__ = ["CtkHarness", "host_surface"]

CAPABILITIES = frozenset(
    {
        Capability.MODEL_CALLS,
        Capability.TOOL_CALLS,
        Capability.PARALLEL_TOOL_CALLS,
        Capability.INT64_JSON,
        Capability.BIGINT_JSON,
        Capability.HOST_DECLARATION,
    }
)
"""Without `incremental_output`: under the contract, text reaches the caller only after the `output` point."""


def host_surface() -> HostSurface:
    """Return what hookline supports of a declaration; pass it to the `HostRegistry` that reads the document."""
    return HostSurface.from_capabilities(sorted(capability.value for capability in CAPABILITIES))


class CtkHarness:
    """Lets the contract's conformance kit drive hookline.

    The kit scripts a model, tools, interceptors and a resolver; each vector is one `exec_agent` with `PolicyHooks`. Run
    it with `pytest --agent-hooks-harness=hookline.adapters.agent_hooks:CtkHarness` and a test that takes the kit's
    fixture `agent_hooks_assert`.

    Attributes:
        name: The host's name.
        capabilities: The host's capabilities, as the kit defines them.
        tool_seam_host_error: `"continue"`: if a tool call fails closed, the model is told and the run continues.
    """

    name = "hookline"
    capabilities = CAPABILITIES
    tool_seam_host_error = "continue"

    def __init__(self) -> None:
        self._scenario: Scenario | None = None
        self._policies: PolicyHooks | None = None
        self._invoked: list[dict[str, Any]] = []

    def host_surface(self) -> HostSurface:
        """Return the surface that a declaration is checked against."""
        return host_surface()

    def declaration(self) -> dict[str, Any] | None:
        """Return `None`: the host's surface is defined in code, not in a declaration."""
        return None

    def setup(
        self,
        scenario: Scenario,
        interceptors: list[Interceptor],
        resolver: ApprovalResolver | None,
        mode: EnforcementMode,
        composition: CompositionConfig,
        identity_provider: str | None,
        redact_for_approval: list[str] | None = None,
    ) -> None:
        """Prepare a vector that configures the host in code."""
        identity: Any = identity_provider
        if identity_provider == "ctk-fault":
            identity = IdentityProvider("ctk-fault", _fail_identity)
        self._scenario = scenario
        self._policies = PolicyHooks(
            *interceptors,
            approvals=resolver,
            mode=mode.value,
            profile=composition,
            identity=identity,
            redact=partial(redact_paths, paths=redact_for_approval) if redact_for_approval else None,
        )

    def setup_declared(self, scenario: Scenario, document: dict[str, Any], registry: HostRegistry) -> None:
        """Prepare a vector that configures the host with a declaration document.

        Raises:
            agent_hooks.DeclarationError: If the document is invalid.
        """
        self._scenario = scenario
        self._policies = PolicyHooks.from_declaration(document, registry)

    async def run(self) -> RunRecord:
        """Run the vector's agent."""
        assert self._scenario is not None
        assert self._policies is not None
        self._invoked = []
        scenario = self._scenario
        agent = Agent(
            id="ctk-agent",
            model=ScriptedModel([_to_turn(scripted) for scripted in scenario.model_script]),
            tools=[self._tool(name) for name in sorted(scenario.tools)],
        )
        prompt = [Message(role=scenario.input["role"], content=scenario.input["content"])]
        result = await exec_agent(agent, prompt, hooks=[self._policies])
        records = self._policies.records
        outcome = _outcome(result)
        return RunRecord(
            outcome=outcome,
            final_output=result.output if outcome is RunOutcome.COMPLETED else None,
            tool_invocations=list(self._invoked),
            error=str(result.error) if result.error is not None else None,
            identities=[(record.input_identity, record.enforced_identity) for record in records],
            records=[record.to_wire() for record in records],
        )

    def teardown(self) -> None:
        """Discard the vector."""
        self._scenario = self._policies = None

    def _tool(self, name: str) -> Tool:
        assert self._scenario is not None
        spec = self._scenario.tools[name]

        async def run(args: Mapping[str, Any]) -> ToolResult:
            value, is_error = spec.invoke(dict(args))
            self._invoked.append({"name": name, "args": dict(args)})
            content = value if isinstance(value, str) else msgspec.json.encode(value).decode()
            return ToolResult(content=content, success=not is_error)

        return Tool(toolset="local", name=name, description="", schema={"type": "object"}, run=run)


def _to_turn(scripted: Any) -> ModelResponse:
    return ModelResponse(
        content=scripted.content or "",
        tool_calls=[
            ToolRequest(tool_name=call["name"], args=call["args"], tool_call_id=call["id"])
            for call in scripted.tool_calls
        ],
        finish_reason=scripted.finish_reason,
    )


def _outcome(result: OperationResult) -> RunOutcome:
    if result.denied is not None:
        return RunOutcome.BLOCKED
    if result.reason == "waiting_for_human":
        return RunOutcome.SUSPENDED
    return RunOutcome.ERROR if result.reason in ("error", "interrupted") else RunOutcome.COMPLETED


def _fail_identity(context: Any) -> str:
    raise RuntimeError("the identity provider of this vector fails")
