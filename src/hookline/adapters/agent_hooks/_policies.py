"""`PolicyHooks`: policies of AGENT-HOOKS-0.1 as interceptors of a run, at all eight points."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import msgspec
from agent_hooks import (
    JCS_SHA256,
    ApprovalResolver,
    CompositionConfig,
    CompositionProfile,
    EnforcementMode,
    HostDeclaration,
    HostError,
    HostRegistry,
    IdentityProvider,
    InterceptionEmitter,
    InterceptionPoint,
    InterceptionRecord,
    Interceptor,
)
from msgspec.structs import replace

from hookline.adapters.agent_hooks._emitting import (
    PolicyDecision,
    PolicyEmitter,
    TimedInterceptor,
    TimedResolver,
    VerdictReplay,
)
from hookline.adapters.agent_hooks._errors import PolicyTransformError
from hookline.adapters.agent_hooks._session import PolicySession, PolicySessions
from hookline.adapters.agent_hooks._wire import (
    content_text,
    decided_call,
    from_wire_args,
    from_wire_messages,
    from_wire_response,
    from_wire_value,
    is_decided_call,
)
from hookline.calls import (
    GUIDES_LEFT,
    AgentCall,
    AgentResult,
    Ask,
    Deny,
    Guide,
    Message,
    ModelCall,
    ModelResponse,
    PartialResponse,
    SubAgentCall,
    ToolCall,
    ToolResult,
)
from hookline.errors import HookDefinitionError, HookUsageError
from hookline.events import OnComplete
from hookline.hooks import Hooks, TextParts
from hookline.instrumentation import Instrumentation, SegmentInfo

__all__ = ["PolicyHooks"]

Approvals = Literal["ask"] | ApprovalResolver | None
Profile = Literal["sequential/first_deny", "sequential/run_all", "parallel/strictest", "parallel/unanimous"]


def check_interceptor(
    where: str, given: Any, timeout: float | None, in_thread: bool
) -> tuple[str | None, TimedInterceptor]:
    """Return an interceptor's name for records, and the interceptor with its time limit."""
    if not callable(getattr(given, "intercept", None)):
        raise HookDefinitionError(
            where, f"a policy must be an object with a method `intercept(context)`; got {given!r}"
        )
    name = getattr(given, "name", None)
    return name if isinstance(name, str) and name else None, TimedInterceptor(given, timeout, in_thread=in_thread)


def check_resolver(where: str, given: object, timeout: float | None) -> TimedResolver | None:
    """Return the approval resolver with its time limit; `None` if a person or nobody decides."""
    if given is None or given == "ask":
        return None
    if not callable(getattr(given, "resolve", None)):
        raise HookDefinitionError(
            where, f'`approvals` must be "ask", an object with a method `resolve(request)`, or None; got {given!r}'
        )
    return TimedResolver(given, timeout)


def check_mode(where: str, given: str) -> EnforcementMode:
    """Return the enforcement mode."""
    try:
        return EnforcementMode(given)
    except ValueError:
        raise HookDefinitionError(where, f'`mode` must be "enforce" or "evaluate_only"; got {given!r}') from None


def check_composition(where: str, given: str | CompositionConfig) -> CompositionConfig:
    """Return how several interceptors decide together."""
    if isinstance(given, CompositionConfig):
        return given
    try:
        return CompositionConfig.from_wire({"profile": CompositionProfile(given).value})
    except ValueError:
        names = ", ".join(repr(profile.value) for profile in CompositionProfile)
        raise HookDefinitionError(
            where, f"`profile` must be one of {names}, or a CompositionConfig; got {given!r}"
        ) from None


def check_points(where: str, given: Iterable[str] | None) -> frozenset[InterceptionPoint]:
    """Return the points at which the policies judge."""
    if given is None:
        return frozenset(InterceptionPoint)
    try:
        points = frozenset(map(InterceptionPoint, [given] if isinstance(given, str) else given))
    except ValueError:
        points = frozenset()
    if not points:
        names = ", ".join(repr(point.value) for point in InterceptionPoint)
        raise HookDefinitionError(where, f"`at` must name some of the points {names}; got {given!r}")
    return points


def read_declaration(document: Mapping[str, Any] | HostDeclaration | os.PathLike[str]) -> HostDeclaration:
    """Return a declaration document as the SDK reads it."""
    if isinstance(document, HostDeclaration):
        return document
    if isinstance(document, os.PathLike):
        return HostDeclaration.from_path(document)
    return HostDeclaration.from_value(document)


def check_identity(where: str, given: object) -> str | IdentityProvider | None:
    """Return the provider of context identities."""
    if given is None or given == JCS_SHA256 or isinstance(given, IdentityProvider):
        return given
    raise HookDefinitionError(where, f"`identity` must be {JCS_SHA256!r}, an IdentityProvider, or None; got {given!r}")


def check_seconds(where: str, name: str, given: object) -> None:
    """Raise if a time limit is not a positive number."""
    number = isinstance(given, int | float) and not isinstance(given, bool) and given > 0
    if given is not None and not number:
        raise HookDefinitionError(where, f"`{name}` must be a number of seconds above 0, or None; got {given!r}")


class PolicyPoints(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The points at which one bundle's policies judge, and how their decisions apply.

    Attributes:
        emitter: Asks the policies.
        points: The points at which they judge.
        id: The bundle's id.
        asks_person: Whether a person is asked about liftable denials.
        stops_on_failure: Whether the run ends if judging a tool call failed.
        tells_warnings: Whether the model reads the warnings of policies.
        guides: Whether a denied answer of the model is sent back to it.
        sessions: The sessions of the running operations.
    """

    emitter: PolicyEmitter
    points: frozenset[InterceptionPoint]
    id: str
    asks_person: bool
    stops_on_failure: bool
    tells_warnings: bool
    guides: bool
    sessions: PolicySessions

    @property
    def metadata_key(self) -> str:
        """The key in a call's metadata for the policies' decision."""
        return f"hookline.policies.{self.id}"

    def tell_warnings(self, call: ToolCall | AgentCall, *judgements: PolicyDecision) -> None:
        """Add the warnings of the policies to a call, if the model reads them."""
        texts = [text for judgement in judgements for text in judgement.warnings] if self.tells_warnings else []
        if texts:
            call.add_context("\n".join(texts))

    def to_guide(self, call: ModelCall, judgement: PolicyDecision) -> Guide | None:
        """Return the reason of a denied answer as feedback, if the model is to answer again and can be asked."""
        if not judgement.denied or not self.guides or judgement.host_error or call.metadata.get(GUIDES_LEFT) == 0:
            return None
        return Guide(judgement.reason)

    def to_denial(self, judgement: PolicyDecision) -> Deny | None:
        """Return the denial of one call, if policies denied it; the run continues."""
        if not judgement.denied:
            return None
        return Deny(judgement.reason, stop=self.stops_on_failure and judgement.host_error)

    def to_final_denial(self, session: PolicySession, judgement: PolicyDecision) -> Deny | None:
        """Return a denial that ends the run, if policies denied it."""
        if not judgement.denied:
            return None
        session.blocked = True
        return Deny(judgement.reason)

    def deny_unusable(
        self, session: PolicySession, error: PolicyTransformError, context: Mapping[str, Any], *, ends: bool = False
    ) -> Deny:
        """Return a denial, because the value that a policy wrote cannot be used.

        Args:
            session: The session of the context.
            error: Why the value cannot be used.
            context: The context that was judged.
            ends: Whether the denial ends the run.
        """
        session.blocked = session.blocked or ends
        record = {**context, "sequence": session.next_sequence()}
        self.emitter.record_failure(InterceptionPoint(error.point), type(error).__name__, record)
        return Deny(str(error), stop=self.stops_on_failure)


class RunPoints:
    """Judges a run and its model calls.

    Args:
        policies: The points and policies of the bundle.
    """

    def __init__(self, policies: PolicyPoints) -> None:
        self._policies = policies

    async def start(self, call: AgentCall) -> AgentCall | Deny | None:
        """Judge the start of a run and each input: `agent_startup` once, `input` for every message of the user."""
        policies = self._policies
        session = policies.sessions.session_of(call)
        if policies.metadata_key in call.metadata:
            raise HookUsageError(
                f"Two bundles of policies with the id {policies.id!r} are in one run. Pass a bundle once, to the agent "
                "or to the run, or give each bundle its own id."
            )
        session.load_notes(call.metadata.setdefault(policies.metadata_key, {}))
        if not session.started:
            denial = await self._judge_startup(session, call)
            if denial is not None:
                return denial
        if InterceptionPoint.INPUT not in policies.points:
            return None
        messages, judged = list(call.input), list[PolicyDecision]()
        for at, message in enumerate(messages):
            if message.role != "user":
                continue
            outcome = await self._judge_input(session, message, judged)
            if isinstance(outcome, Deny):
                return outcome
            messages[at] = outcome
        policies.tell_warnings(call, *judged)
        return None if messages == call.input else replace(call, input=messages)

    async def resume(self, call: AgentCall) -> Deny | None:
        """Continue after a pause; for policies that were not in the run before, it starts now."""
        policies = self._policies
        session = policies.sessions.session_of(call)
        if session.started:
            return None
        known = policies.metadata_key in call.metadata
        session.load_notes(call.metadata.setdefault(policies.metadata_key, {}))
        if known:
            session.started = True
            return None
        return await self._judge_startup(session, call)

    async def check_output(self, call: AgentCall, result: AgentResult) -> AgentResult | Deny | None:
        """Judge the output of a run, before the caller receives it: `output`."""
        policies = self._policies
        if result.reason != "done" and not result.output:
            return None
        session = policies.sessions.session_of(call)
        context = session.output(result.output)
        judgement = await policies.emitter.judge(context)
        denial = policies.to_final_denial(session, judgement)
        if denial is not None or not judgement.transformed:
            return denial
        try:
            return replace(result, output=content_text("output", judgement.target))
        except PolicyTransformError as error:
            return policies.deny_unusable(session, error, context, ends=True)

    async def shut_down(self, event: OnComplete) -> None:
        """Report the end of an operation, however it ended: `agent_shutdown`."""
        policies = self._policies
        session = policies.sessions.find(event.operation_id)
        if session is not None and session.started and event.reason != "waiting_for_human":
            await policies.emitter.judge(session.shutdown(event))

    async def before_model(self, call: ModelCall) -> ModelCall | Deny | None:
        """Judge a model call: `pre_model_call`."""
        policies = self._policies
        session = policies.sessions.session_of(call)
        call.metadata[policies.metadata_key] = True
        context = session.before_model(call)
        judgement = await policies.emitter.judge(context)
        denial = policies.to_final_denial(session, judgement)
        if denial is not None or not judgement.transformed:
            return denial
        try:
            return replace(call, messages=from_wire_messages("pre_model_call", judgement.target, call.messages))
        except PolicyTransformError as error:
            return policies.deny_unusable(session, error, context, ends=True)

    async def after_model(self, call: ModelCall, response: ModelResponse) -> ModelResponse | Deny | Guide | None:
        """Judge a model's answer: `post_model_call`."""
        policies = self._policies
        if InterceptionPoint.PRE_MODEL_CALL in policies.points and policies.metadata_key not in call.metadata:
            return None  # a hook answered before `pre_model_call` was judged
        session = policies.sessions.session_of(call)
        context = session.after_model(call, response)
        if isinstance(response, PartialResponse) and response.finish_reason == "truncated":
            return self._deny_residue(session, context)
        judgement = await policies.emitter.judge(context)
        guide = policies.to_guide(call, judgement)
        if guide is not None:
            return guide
        denial = policies.to_final_denial(session, judgement)
        if denial is not None or not judgement.transformed:
            return denial
        try:
            return from_wire_response("post_model_call", judgement.target, response)
        except PolicyTransformError as error:
            return policies.deny_unusable(session, error, context, ends=True)

    def _deny_residue(self, session: PolicySession, context: Mapping[str, Any]) -> Deny:
        """Deny an answer whose stream broke, because no policy has judged the rest of its text."""
        session.blocked = True
        error = HostError.STREAMING_UNSUPPORTED
        self._policies.emitter.record_failure(
            InterceptionPoint.POST_MODEL_CALL, "StreamTruncated", context, error=error
        )
        return Deny(f"{error.value}: the stream of the answer broke before all of its text was judged")

    async def _judge_startup(self, session: PolicySession, call: AgentCall) -> Deny | None:
        policies = self._policies
        session.started = True
        if InterceptionPoint.AGENT_STARTUP not in policies.points:
            return None
        judgement = await policies.emitter.judge(session.startup(call.tools))
        return policies.to_final_denial(session, judgement)

    async def _judge_input(
        self, session: PolicySession, message: Message, judged: list[PolicyDecision]
    ) -> Message | Deny:
        policies = self._policies
        context = session.input(message)
        judgement = await policies.emitter.judge(context)
        judged.append(judgement)
        denial = policies.to_final_denial(session, judgement)
        if denial is not None or not judgement.transformed:
            return denial or message
        try:
            if judgement.target.get("role") != "user":
                raise PolicyTransformError("input", "the `role` of an input cannot be changed")
            return replace(message, content=content_text("input", judgement.target))
        except PolicyTransformError as error:
            return policies.deny_unusable(session, error, context, ends=True)


class ToolPoints:
    """Judges tool calls and sub-agent calls.

    Args:
        policies: The points and policies of the bundle.
    """

    def __init__(self, policies: PolicyPoints) -> None:
        self._policies = policies

    async def before_tool(self, call: ToolCall) -> ToolCall | Deny | None:
        """Judge a tool call: `pre_tool_call`."""
        policies = self._policies
        session = policies.sessions.session_of(call)
        judgement, context = await self._judge_call(session, call)
        if judgement.denied and not self._should_ask(judgement):
            return policies.to_denial(judgement)
        if not judgement.transformed:
            return None
        try:
            final = replace(call, args=from_wire_args(judgement.target))
        except PolicyTransformError as error:
            return policies.deny_unusable(session, error, context)
        call.metadata[policies.metadata_key]["judged"] = decided_call(final)
        return final

    async def approve(self, call: ToolCall) -> Ask | Deny | None:
        """Ask a person if policies want it, judge a call that has changed since, or finish after a pause."""
        policies = self._policies
        session = policies.sessions.session_of(call)
        noted = call.metadata.get(policies.metadata_key)
        if noted is None or not is_decided_call(noted["judged"], call):
            judgement, context = await self._judge_call(session, call)
            if judgement.denied and not self._should_ask(judgement):
                return policies.to_denial(judgement)
            if judgement.transformed:
                error = PolicyTransformError("pre_tool_call", "the arguments can no longer be changed")
                return policies.deny_unusable(session, error, context)
            noted = call.metadata[policies.metadata_key]
        if "waiting" not in noted:
            return None
        prompt = session.asking.pop(call.tool_call_id, None)
        if prompt is not None or not session.resumed:
            return Ask(prompt or "a policy wants a person to decide")
        return await self._finish_approved(session, call, noted.pop("waiting"))

    async def after_tool(self, call: ToolCall, result: ToolResult) -> ToolResult | Deny | None:
        """Judge the result of a tool: `post_tool_call`."""
        policies = self._policies
        if InterceptionPoint.PRE_TOOL_CALL in policies.points and policies.metadata_key not in call.metadata:
            return None  # a hook answered before the tool's turn came
        session = policies.sessions.session_of(call)
        context = session.after_tool(call, result)
        judgement = await policies.emitter.judge(context)
        policies.tell_warnings(call, judgement)
        if judgement.denied:
            return policies.to_denial(judgement)
        return replace(result, content=from_wire_value(judgement.target)) if judgement.transformed else None

    async def before_agent(self, call: SubAgentCall) -> SubAgentCall | Deny | None:
        """Judge the call of a sub-agent: `pre_tool_call`."""
        policies = self._policies
        session = policies.sessions.session_of(call)
        call.metadata[policies.metadata_key], context = session.before_agent(call)
        judgement = await policies.emitter.judge(context)
        if judgement.denied:
            return policies.to_denial(judgement)
        if not judgement.transformed:
            return None
        try:
            args = from_wire_args(judgement.target)
            if set(args) != {"instruction"} or not isinstance(args["instruction"], str):
                raise PolicyTransformError(
                    "pre_tool_call", "the arguments of a sub-agent must be an `instruction`, which is text"
                )
            return replace(call, instruction=args["instruction"])
        except PolicyTransformError as error:
            return policies.deny_unusable(session, error, context)

    async def after_agent(self, call: SubAgentCall, result: AgentResult) -> AgentResult | Deny | None:
        """Judge the output of a sub-agent: `post_tool_call`."""
        policies = self._policies
        session = policies.sessions.session_of(call)
        call_id = call.metadata.get(policies.metadata_key)
        if call_id is None:
            if InterceptionPoint.PRE_TOOL_CALL in policies.points:
                return None
            call_id, _ = session.before_agent(call)
        context = session.after_agent(call, call_id, result.output, failed=result.reason != "done")
        judgement = await policies.emitter.judge(context)
        if judgement.denied:
            return policies.to_denial(judgement)
        return replace(result, output=from_wire_value(judgement.target)) if judgement.transformed else None

    async def _judge_call(self, session: PolicySession, call: ToolCall) -> tuple[PolicyDecision, dict[str, Any]]:
        """Judge a call, and store in its metadata what must be known after a pause."""
        policies = self._policies
        context = session.before_tool(call)
        original = dict(context)  # the emitter writes transforms into the other copy
        replay = VerdictReplay() if policies.asks_person else None
        judgement = await policies.emitter.judge(context, replay=replay)
        policies.tell_warnings(call, judgement)
        noted: dict[str, Any] = {"judged": decided_call(call)}
        call.metadata[policies.metadata_key] = noted
        session.asking.pop(call.tool_call_id, None)
        if replay is not None and self._should_ask(judgement):
            noted["waiting"] = json.dumps({"context": original, "verdicts": replay.verdicts})
            session.asking[call.tool_call_id] = judgement.reason
        return judgement, original

    async def _finish_approved(self, session: PolicySession, call: ToolCall, waiting: str) -> Deny | None:
        """Finish the judgement of a call that a person approved: ask only the policies not asked before."""
        policies = self._policies
        earlier = json.loads(waiting)
        context = session.number(earlier["context"])
        judgement = await policies.emitter.finish(context, earlier["verdicts"])
        if judgement.denied:
            return policies.to_denial(judgement)
        try:
            if not is_decided_call(decided_call(replace(call, args=from_wire_args(judgement.target))), call):
                raise PolicyTransformError("pre_tool_call", "a person approved the arguments as they were before")
        except PolicyTransformError as error:
            return policies.deny_unusable(session, error, context)
        return None

    def _should_ask(self, judgement: PolicyDecision) -> bool:
        return self._policies.asks_person and judgement.liftable


class PolicyHooks(Instrumentation):
    """Policies of the AGENT-HOOKS-0.1 contract, as one bundle of a run.

    The policies judge at all eight points of the contract, and their decisions are enforced: denied calls do not run,
    transformed values replace the originals, and a denial that a person may lift pauses the run at a tool call. Without
    any interceptor everything is denied, as the contract requires. Pass the bundle once, in the `hooks` of
    `exec_agent`, `resume_agent`, an `AgentSession` or an `Agent`.

    Args:
        interceptors: The policies: objects with a sync or async `intercept(context)` that returns a `Verdict`.
        id: The name of the bundle, part of the hook ids in denials.
        approvals: Who may lift a denial that has an `approval` block. `"ask"`: a person, at a tool call, by a pause of
            the run; at other points the denial stands. An object with `resolve(request)`: that object, at once and at
            every point. `None`: nobody.
        mode: `"enforce"`, or `"evaluate_only"` to only record and log the decisions.
        profile: How several policies decide together: one of the contract's four profiles, or a `CompositionConfig`.
        at: The points at which the policies judge; all eight unless given. Other points are not emitted.
        timeout: Seconds that each policy may take for one context; `None` for no limit. A sync policy cannot be
            stopped.
        approval_timeout: Seconds that an object given as `approvals` may take.
        identity: The provider of context identities; `None` for no identities, which permits integers beyond 2**53.
        redact: Returns the context that an object given as `approvals` sees.
        in_thread: Whether sync policies run in a worker thread, for policies that wait for a network or a disk.
        tell_warnings: Whether the model reads the warnings of the verdicts about an input or a tool call, as context.
        guide: Whether the model is asked again, with the reason, if policies deny its answer (`post_model_call`). If it
            was asked as often as `Agent(max_guides=...)` allows, the denial ends the run.
        parts: How policies judge an answer while the model writes it, so that readers get it in parts, as the contract
            describes for hosts with `incremental_output`; `None` to release text after the `output` point only. With
            parts, `output` withholds the result of the run, but not the text that readers have.
        on_record: Called with every record of the contract at once; it must be quick.
        max_records: Maximum number of records in `records`.
        priority: From 0 to 1000. With a lower number the policies run later than other hooks: before a call, after all
            hooks of priority below `1000 - priority`; after a call, after all hooks of higher priority.
        tenant_id: Only judge runs of this tenant; `""` for every tenant.
        inherit: Whether to judge the operations of sub-agents too.

    Raises:
        HookDefinitionError: If an argument is invalid.
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
        tell_warnings: bool = False,
        guide: bool = False,
        parts: TextParts | None = None,
        on_record: Callable[[InterceptionRecord], object] | None = None,
        max_records: int = 1000,
        priority: int = 0,
        tenant_id: str = "",
        inherit: bool = True,
    ) -> None:
        where = f"PolicyHooks {id!r}"
        check_seconds(where, "timeout", timeout)
        check_seconds(where, "approval_timeout", approval_timeout)
        provider = check_identity(where, identity)
        bounded = [check_interceptor(where, each, timeout, in_thread) for each in interceptors]
        resolver = check_resolver(where, approvals, approval_timeout)
        if parts is not None and guide:
            raise HookDefinitionError(
                where, "text that was released in `parts` cannot be discarded; leave out `guide=True` or `parts`"
            )
        enforcement, composition = check_mode(where, mode), check_composition(where, profile)

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

        policies = PolicyPoints(
            emitter=PolicyEmitter(make, resolver=resolver, max_records=max_records, on_record=on_record),
            points=check_points(where, at),
            id=id,
            asks_person=approvals == "ask" and enforcement is EnforcementMode.ENFORCE,
            stops_on_failure=False,
            tells_warnings=tell_warnings and enforcement is EnforcementMode.ENFORCE,
            guides=guide,
            sessions=PolicySessions(),
        )
        options = {"priority": priority, "tenant_id": tenant_id, "inherit": inherit}
        self._register_policies(id, policies, options, parts)

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
        """Create policies from a declaration document of the contract.

        The document configures everything that the contract defines: interceptors and their points, mode, profile,
        approval resolver, time limits. No person is asked unless the document says so.

        Args:
            document: The document, or the path of its file.
            registry: The objects that the document refers to, created with `HostRegistry(host_surface())`.
            id: The name of the bundle.
            on_record: Called with every record.
            max_records: Maximum number of records in `records`; the document may set a lower limit.
            priority: As for `PolicyHooks`.
            tenant_id: Only judge runs of this tenant.
            inherit: Whether to judge the operations of sub-agents too.

        Raises:
            agent_hooks.DeclarationError: If the document is invalid.
        """
        emitter = InterceptionEmitter.from_declaration(read_declaration(document), registry)
        resolved = emitter.declaration
        assert resolved is not None
        buffered = resolved.configuration["records"]["max_buffered"]
        policy_emitter = PolicyEmitter(
            lambda resolver: emitter,
            resolver=None,
            max_records=max_records if buffered is None else min(max_records, buffered),
            on_record=on_record,
        )
        policies = PolicyPoints(
            emitter=policy_emitter,
            points=frozenset(map(InterceptionPoint, resolved.surface["interception_points"])),
            id=id,
            asks_person=False,
            stops_on_failure=resolved.configuration["posture"]["tool_seam_host_error"] == "terminate",
            tells_warnings=False,
            guides=False,
            sessions=PolicySessions(),
        )
        hooks = cls.__new__(cls)
        hooks._register_policies(id, policies, {"priority": priority, "tenant_id": tenant_id, "inherit": inherit})
        return hooks

    @property
    def records(self) -> tuple[InterceptionRecord, ...]:
        """The latest records of the contract, oldest first; they hold no content."""
        return tuple(self._policies.emitter.records)

    def _register_policies(
        self,
        id: str,  # noqa: A002
        policies: PolicyPoints,
        options: dict[str, Any],
        parts: TextParts | None = None,
    ) -> None:
        super().__init__(id, **options)
        self._policies = policies
        points, run, tools = policies.points, RunPoints(policies), ToolPoints(policies)
        # The contract limits each interceptor's time; a hook's time limit would include the time of a resolver.
        way_in: dict[str, Any] = {"priority": 1000 - self.priority, "timeout": math.inf}
        way_out: dict[str, Any] = {"timeout": math.inf}
        self.before(AgentCall, **way_in, id=f"{id}.input")(run.start)
        self.guard(AgentCall, **way_out, id=f"{id}.agent_startup")(run.resume)
        if InterceptionPoint.PRE_MODEL_CALL in points:
            self.before(ModelCall, **way_in, id=f"{id}.pre_model_call")(run.before_model)
        if InterceptionPoint.POST_MODEL_CALL in points:
            self.after(ModelCall, **way_out, id=f"{id}.post_model_call", parts=parts)(run.after_model)
        if InterceptionPoint.PRE_TOOL_CALL in points:
            self.before(ToolCall, **way_in, id=f"{id}.pre_tool_call")(tools.before_tool)
            self.guard(ToolCall, **way_out, id=f"{id}.pre_tool_call")(tools.approve)
            self.before(SubAgentCall, **way_in, id=f"{id}.pre_tool_call")(tools.before_agent)
        if InterceptionPoint.POST_TOOL_CALL in points:
            self.after(ToolCall, **way_out, id=f"{id}.post_tool_call")(tools.after_tool)
            self.after(SubAgentCall, **way_out, id=f"{id}.post_tool_call")(tools.after_agent)
        if InterceptionPoint.OUTPUT in points:
            self.after(AgentCall, **way_out, id=f"{id}.output", hold_text=parts is None)(run.check_output)
        if InterceptionPoint.AGENT_SHUTDOWN in points:
            self.on(OnComplete, timeout=math.inf, id=f"{id}.agent_shutdown")(run.shut_down)

    def begin(self, segment: SegmentInfo) -> tuple[Any, Hooks | None]:
        """Open the session of a segment."""
        self._policies.sessions.open(segment)
        return segment.operation_id, self

    def end(self, begun: Any) -> None:
        """Close the session of a segment."""
        self._policies.sessions.close(begun)
