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
    HostRegistry,
    IdentityProvider,
    InterceptionEmitter,
    InterceptionPoint,
    InterceptionRecord,
    Interceptor,
)
from msgspec.structs import replace

from hookline.adapters.agent_hooks._emitting import Bounded, BoundedResolver, Emissions, Judgement, Replay
from hookline.adapters.agent_hooks._errors import PolicyTransformError
from hookline.adapters.agent_hooks._session import Session, Sessions
from hookline.adapters.agent_hooks._wire import (
    args_from,
    bound,
    content_of,
    messages_from,
    response_from,
    still_bound,
    text_of,
)
from hookline.calls import (
    AgentCall,
    AgentResult,
    Ask,
    Deny,
    Message,
    ModelCall,
    ModelResponse,
    SubAgentCall,
    ToolCall,
    ToolResult,
)
from hookline.errors import HookDefinitionError, HookUsageError
from hookline.events import OnComplete
from hookline.instrumentation import Instrumentation, SegmentInfo

__all__ = [
    "Approvals",
    "PolicyHooks",
    "PolicyPoints",
    "Profile",
    "RunPoints",
    "ToolPoints",
    "checked_composition",
    "checked_declaration",
    "checked_identity",
    "checked_interceptor",
    "checked_mode",
    "checked_points",
    "checked_resolver",
    "checked_seconds",
]

Approvals = Literal["ask"] | ApprovalResolver | None
Profile = Literal["sequential/first_deny", "sequential/run_all", "parallel/strictest", "parallel/unanimous"]


def checked_interceptor(where: str, given: Any, timeout: float | None, in_thread: bool) -> tuple[str | None, Bounded]:
    """The name of an interceptor, for records, and what the emitter calls."""
    if not callable(getattr(given, "intercept", None)):
        raise HookDefinitionError(where, f"a policy is an object with a method `intercept(context)`; got {given!r}")
    name = getattr(given, "name", None)
    return name if isinstance(name, str) and name else None, Bounded(given, timeout, in_thread=in_thread)


def checked_resolver(where: str, given: object, timeout: float | None) -> BoundedResolver | None:
    """Who decides about liftable denials at once; `None` for nobody."""
    if given is None or given == "ask":
        return None
    if not callable(getattr(given, "resolve", None)):
        raise HookDefinitionError(
            where, f'`approvals` is "ask", an object with a method `resolve(request)`, or None; got {given!r}'
        )
    return BoundedResolver(given, timeout)


def checked_mode(where: str, given: str) -> EnforcementMode:
    """The mode."""
    try:
        return EnforcementMode(given)
    except ValueError:
        raise HookDefinitionError(where, f'`mode` is "enforce" or "evaluate_only"; got {given!r}') from None


def checked_composition(where: str, given: str | CompositionConfig) -> CompositionConfig:
    """How several interceptors decide together."""
    if isinstance(given, CompositionConfig):
        return given
    try:
        return CompositionConfig.from_wire({"profile": CompositionProfile(given).value})
    except ValueError:
        names = ", ".join(repr(profile.value) for profile in CompositionProfile)
        raise HookDefinitionError(
            where, f"`profile` is one of {names}, or a CompositionConfig; got {given!r}"
        ) from None


def checked_points(where: str, given: Iterable[str] | None) -> frozenset[InterceptionPoint]:
    """The points at which they judge."""
    if given is None:
        return frozenset(InterceptionPoint)
    try:
        points = frozenset(map(InterceptionPoint, [given] if isinstance(given, str) else given))
    except ValueError:
        points = frozenset()
    if not points:
        names = ", ".join(repr(point.value) for point in InterceptionPoint)
        raise HookDefinitionError(where, f"`at` names some of the points {names}; got {given!r}")
    return points


def checked_declaration(document: Mapping[str, Any] | HostDeclaration | os.PathLike[str]) -> HostDeclaration:
    """The document as the SDK reads it."""
    if isinstance(document, HostDeclaration):
        return document
    if isinstance(document, os.PathLike):
        return HostDeclaration.from_path(document)
    return HostDeclaration.from_value(document)


def checked_identity(where: str, given: object) -> str | IdentityProvider | None:
    """The provider of identities."""
    if given is None or given == JCS_SHA256 or isinstance(given, IdentityProvider):
        return given
    raise HookDefinitionError(where, f"`identity` is {JCS_SHA256!r}, an IdentityProvider, or None; got {given!r}")


def checked_seconds(where: str, name: str, given: object) -> None:
    """Refuse what is no time limit."""
    number = isinstance(given, int | float) and not isinstance(given, bool) and given > 0
    if given is not None and not number:
        raise HookDefinitionError(where, f"`{name}` is a number of seconds above 0, or None; got {given!r}")


class PolicyPoints(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Where the contexts of one bundle are judged.

    Attributes:
        emissions: Asks the policies.
        points: The points at which they judge.
        id: The bundle.
        asks: Whether a person is asked about what can be lifted.
        terminates: Whether the run ends where judging a tool call failed.
        sessions: What is known of the operations.
    """

    emissions: Emissions
    points: frozenset[InterceptionPoint]
    id: str
    asks: bool
    terminates: bool
    sessions: Sessions

    @property
    def key(self) -> str:
        """Under which calls carry what was decided about them."""
        return f"hookline.policies.{self.id}"

    def denied(self, judgement: Judgement) -> Deny | None:
        """A denial of one call, if it is one; the run goes on."""
        if not judgement.denied:
            return None
        return Deny(judgement.reason, stop=self.terminates and judgement.host_error)

    def ended(self, session: Session, judgement: Judgement) -> Deny | None:
        """A denial that ends the run, if it is one."""
        if not judgement.denied:
            return None
        session.blocked = True
        return Deny(judgement.reason)

    def unusable(
        self, session: Session, error: PolicyTransformError, context: Mapping[str, Any], *, ends: bool = False
    ) -> Deny:
        """Deny, because what a policy wrote cannot be used.

        Args:
            session: Whose context it was.
            error: What is wrong.
            context: What was judged.
            ends: Whether this ends the run.
        """
        session.blocked = session.blocked or ends
        record = {**context, "sequence": session.next()}
        self.emissions.failed(InterceptionPoint(error.point), type(error).__name__, record)
        return Deny(str(error), stop=self.terminates)


class RunPoints:
    """Judges a run and its model calls.

    Args:
        desk: Where.
    """

    def __init__(self, desk: PolicyPoints) -> None:
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


class ToolPoints:
    """Judges tool calls.

    Args:
        desk: Where.
    """

    def __init__(self, desk: PolicyPoints) -> None:
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


class PolicyHooks(Instrumentation):
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

        desk = PolicyPoints(
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
        desk = PolicyPoints(
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

    def _set_up(self, id: str, desk: PolicyPoints, options: dict[str, Any]) -> None:  # noqa: A002
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

    def begin(self, segment: SegmentInfo) -> tuple[Any, bool]:
        """A segment of an operation begins: open its session."""
        self._desk.sessions.open(segment)
        return segment.operation_id, True

    def end(self, begun: Any) -> None:
        """It is over, on whatever path: close the session."""
        self._desk.sessions.close(begun)
