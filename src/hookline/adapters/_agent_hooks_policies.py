"""`PolicyHooks`: policies of AGENT-HOOKS-0.1 as interceptors of a run, at all eight points."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from agent_hooks import (
    CompositionConfig,
    EnforcementMode,
    HostDeclaration,
    HostRegistry,
    IdentityProvider,
    InterceptionEmitter,
    InterceptionPoint,
    InterceptionRecord,
    Interceptor,
)

from hookline.adapters._agent_hooks_desk import Desk
from hookline.adapters._agent_hooks_emitting import Emissions
from hookline.adapters._agent_hooks_options import (
    Approvals,
    Profile,
    checked_composition,
    checked_declaration,
    checked_identity,
    checked_interceptor,
    checked_mode,
    checked_points,
    checked_resolver,
    checked_seconds,
)
from hookline.adapters._agent_hooks_run_points import RunPoints
from hookline.adapters._agent_hooks_session import Sessions
from hookline.adapters._agent_hooks_tool_points import ToolPoints
from hookline.calls import AgentCall, ModelCall, SubAgentCall, ToolCall
from hookline.events import OnComplete
from hookline.instrumentation import EnclosingHooks, Segment

__all__ = ["PolicyHooks"]


class PolicyHooks(EnclosingHooks):
    """Policies of the AGENT-HOOKS-0.1 contract, as one bundle of a run.

    They judge at all eight points of the contract, and what they decide is what happens: denied calls do not run, what
    they transform is what runs, and a denial that a person may lift pauses the run at a tool call. Without any
    interceptor everything is denied, as the contract wants it. It goes into the `hooks` of `exec_agent`,
    `resume_agent`, an `AgentSession` or an `Agent`, once.

    Args:
        interceptors: What decides: objects with `intercept(context)`, which gives a `Verdict`; plain or async.
        id: Name of the bundle, part of the hook ids in denials.
        approvals: Who may lift a denial that carries an `approval` block. `"ask"`: a person, at a tool call, by a pause
            of the run; anywhere else the denial stands. An object with `resolve(request)`: that, at once and
            everywhere. `None`: nobody.
        mode: `"enforce"`, or `"evaluate_only"` to note and log what they would decide.
        profile: How several of them decide together: one of the contract's four profiles, or a `CompositionConfig`.
        at: The points at which they judge; all eight unless given. The others are not told to anybody.
        timeout: Seconds that each may take over one context; `None` for no limit. A plain one cannot be stopped.
        approval_timeout: Seconds that an object given as `approvals` may take.
        identity: The provider of context identities; `None` for none, so that integers beyond 2**53 may pass.
        redact: Makes the context that an object given as `approvals` sees.
        in_thread: Whether plain interceptors run in a worker thread: for such as wait for a network or a disk.
        on_record: Told every record of the contract at once; must be quick.
        max_records: How many records `records` keeps.
        priority: How near to having the last word, from 0: on the way in the bundle comes after all hooks of smaller
            priority than `1000 - priority`, on the way out after all of higher priority.
        tenant_id: Only for runs of this tenant; `""` for every tenant.
        inherit: Whether they judge the operations of sub-agents too.

    Raises:
        HookDefinitionError: If an argument cannot work.
    """

    recorded = True

    def __init__(
        self,
        *interceptors: Interceptor,
        id: str = "policies",  # noqa: A002
        approvals: Approvals = "ask",
        mode: Literal["enforce", "evaluate_only"] = "enforce",
        profile: Profile | CompositionConfig = "sequential/first_deny",
        at: Iterable[str] | None = None,
        timeout: float | None = 5.0,
        approval_timeout: float | None = 5.0,
        identity: Literal["jcs-sha256"] | IdentityProvider | None = "jcs-sha256",
        redact: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
        in_thread: bool = False,
        on_record: Callable[[InterceptionRecord], object] | None = None,
        max_records: int = 1000,
        priority: int = 0,
        tenant_id: str = "",
        inherit: bool = True,
    ) -> None:
        where = f"PolicyHooks {id!r}"
        checked_seconds(where, "timeout", timeout)
        checked_seconds(where, "approval_timeout", approval_timeout)
        provider = checked_identity(where, identity)
        bounded = [checked_interceptor(where, each, timeout, in_thread) for each in interceptors]
        resolver = checked_resolver(where, approvals, approval_timeout)
        enforcement, composition = checked_mode(where, mode), checked_composition(where, profile)

        def make(resolver: Any) -> InterceptionEmitter:
            emitter = InterceptionEmitter(
                mode=enforcement,
                resolver=resolver,
                timeout=None,  # the SDK's own limit needs asyncio
                composition=composition,
                identity_provider=provider,
            )
            for name, each in bounded:
                emitter.register(each, name)
            if redact is not None:
                emitter.set_approval_redactor(redact)
            return emitter

        desk = Desk(
            emissions=Emissions(make, resolver=resolver, max_records=max_records, on_record=on_record),
            points=checked_points(where, at),
            id=id,
            asks=approvals == "ask" and enforcement is EnforcementMode.ENFORCE,
            terminates=False,
            sessions=Sessions(),
        )
        self._set_up(id, desk, {"priority": priority, "tenant_id": tenant_id, "inherit": inherit})

    @classmethod
    def from_declaration(
        cls,
        document: Mapping[str, Any] | HostDeclaration | os.PathLike[str],
        registry: HostRegistry,
        *,
        id: str = "policies",  # noqa: A002
        on_record: Callable[[InterceptionRecord], object] | None = None,
        max_records: int = 1000,
        priority: int = 0,
        tenant_id: str = "",
        inherit: bool = True,
    ) -> PolicyHooks:
        """Policies as a declaration document of the contract configures them.

        The document decides everything that the contract knows: interceptors and their points, mode, profile, approval
        resolver, time limits. Nobody is asked whom it does not name.

        Args:
            document: The document, or the path of its file.
            registry: What it refers to, made with `HostRegistry(host_surface())`.
            id: Name of the bundle.
            on_record: Told every record.
            max_records: How many records `records` keeps; at most as many as the document says.
            priority: As for `PolicyHooks`.
            tenant_id: Only for runs of this tenant.
            inherit: Whether they judge the operations of sub-agents too.

        Raises:
            agent_hooks.DeclarationError: If the document is refused.
        """
        emitter = InterceptionEmitter.from_declaration(checked_declaration(document), registry)
        resolved = emitter.declaration
        assert resolved is not None
        buffered = resolved.configuration["records"]["max_buffered"]
        emissions = Emissions(
            lambda resolver: emitter,
            resolver=None,
            max_records=max_records if buffered is None else min(max_records, buffered),
            on_record=on_record,
        )
        policies = cls.__new__(cls)
        desk = Desk(
            emissions=emissions,
            points=frozenset(map(InterceptionPoint, resolved.surface["interception_points"])),
            id=id,
            asks=False,
            terminates=resolved.configuration["posture"]["tool_seam_host_error"] == "terminate",
            sessions=Sessions(),
        )
        policies._set_up(id, desk, {"priority": priority, "tenant_id": tenant_id, "inherit": inherit})
        return policies

    @property
    def records(self) -> tuple[InterceptionRecord, ...]:
        """The contract's records of what was judged last, oldest first; they hold no content."""
        return tuple(self._desk.emissions.records)

    def _set_up(self, id: str, desk: Desk, options: dict[str, Any]) -> None:  # noqa: A002
        super().__init__(id, **options)
        self._desk = desk
        points, run, tools = desk.points, RunPoints(desk), ToolPoints(desk)
        # The contract limits the time of each interceptor; a limit of the hook would count a resolver's time as well.
        way_in: dict[str, Any] = {"priority": 1000 - self.priority, "timeout": math.inf}
        way_out: dict[str, Any] = {"timeout": math.inf}
        self.before(AgentCall, **way_in, id=f"{id}.input")(run.start)
        self.guard(AgentCall, **way_out, id=f"{id}.agent_startup")(run.take_up)
        if InterceptionPoint.PRE_MODEL_CALL in points:
            self.before(ModelCall, **way_in, id=f"{id}.pre_model_call")(run.before_model)
        if InterceptionPoint.POST_MODEL_CALL in points:
            self.after(ModelCall, **way_out, id=f"{id}.post_model_call")(run.after_model)
        if InterceptionPoint.PRE_TOOL_CALL in points:
            self.before(ToolCall, **way_in, id=f"{id}.pre_tool_call")(tools.before_tool)
            self.guard(ToolCall, **way_out, id=f"{id}.pre_tool_call")(tools.approve)
            self.before(SubAgentCall, **way_in, id=f"{id}.pre_tool_call")(tools.before_agent)
        if InterceptionPoint.POST_TOOL_CALL in points:
            self.after(ToolCall, **way_out, id=f"{id}.post_tool_call")(tools.after_tool)
            self.after(SubAgentCall, **way_out, id=f"{id}.post_tool_call")(tools.after_agent)
        if InterceptionPoint.OUTPUT in points:
            self.after(AgentCall, **way_out, id=f"{id}.output")(run.output)
        if InterceptionPoint.AGENT_SHUTDOWN in points:
            self.on(OnComplete, timeout=math.inf, id=f"{id}.agent_shutdown")(run.shut_down)

    def begin(self, segment: Segment) -> tuple[Any, bool]:
        """A segment of an operation begins: open its session."""
        self._desk.sessions.open(segment)
        return segment.operation_id, True

    def end(self, begun: Any) -> None:
        """It is over, on whatever path: close the session."""
        self._desk.sessions.close(begun)
