"""Webhooks: hooks as data with the address to deliver events to, and the envelope of a delivery."""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from hashlib import sha256
from typing import Any, Literal, Protocol, TypeAlias
from urllib.parse import SplitResult, urlsplit

import msgspec

from hookline._checks import quote, tool_matcher
from hookline._readonly import check_finite
from hookline.dialects import (
    DIALECTS,
    DialectName,
    HostEventName,
    HostQuestion,
    build_question,
    events_at,
    matcher_problem,
    matches,
)
from hookline.errors import HookDefinitionError
from hookline.events import TOOL_EVENTS, Event, HookType

__all__ = ["ControlAnswer", "Delivery", "Envelope", "HookData", "ServedBy", "Webhook"]

HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
CONTROL_CHARACTER = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
VARIABLE = re.compile(r"\$\{([^}]*)\}")
RESERVED_HEADERS = frozenset(
    {
        *("connection", "content-encoding", "content-length", "content-type", "expect", "host", "keep-alive"),
        *("proxy-authorization", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"),
        *("hookline-deadline", "hookline-event-number", "webhook-id", "webhook-signature", "webhook-timestamp"),
    }
)
"""Headers that belong to HTTP or to the signature, which no hook may set."""
RESERVED_KEYS = ("hookId", "hookType")
LONGEST_URL = 2048
LONGEST_MATCHER = 1000
SCHEMES = ("http", "https", "local")


class Webhook(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True
):
    """The address and the options of a hook's deliveries. It is stored with the operation.

    Attributes:
        url: An `http://` or `https://` URL, or `local://name` for a function in a process; see `Delivery.serve`.
        body: Further fields of each payload. They cannot replace those of the event.
        event_fields: The fields of the event to send, by their JSON names; all by default.
        headers: Headers to send. `${NAME}` is replaced by an environment variable of the sending process.
        allowed_env_vars: The variables that headers can use.
        timeout: Seconds for one attempt, 0.1 to 300.
        fallback: `"fetch"`: a failed delivery does not affect the operation. `"none"`: the operation ends with an error
            if the event cannot be handed over for delivery.
        key: Name of the signing key in the key ring of the sending process.
        control: Whether the receiver decides about the call, for `beforeToolCall` only. The hook is then a
            `before(ToolCall)`; the answer allows, denies, changes or answers the call, or asks a person.
        on_error: For a control, what happens to the call without a valid answer in time: `"closed"` denies it, `"open"`
            lets it run.
        dialect: The protocol of the receiver: `"hookline"`, or that of the hooks of a coding agent. The payload is then
            what this agent posts to its HTTP hooks, and the answer of a control is read as the agent reads it.
        matcher: With another dialect, the tools that the hook is for, as the agent's settings have it: names, or a
            regular expression, of tools as the agent calls them. `""` is every tool.
        host_event: With another dialect, the agent's event that the hook is for, by Claude Code's name, where the type
            of the hook has several; `""` for the usual one.
    """

    url: str
    body: dict[str, Any] = {}
    event_fields: list[str] | None = None
    headers: dict[str, str] = {}
    allowed_env_vars: list[str] = []
    timeout: float = 30.0
    fallback: Literal["fetch", "none"] = "fetch"
    key: str = ""
    control: bool = False
    on_error: Literal["open", "closed"] = "closed"
    dialect: DialectName = "hookline"
    matcher: str = ""
    host_event: HostEventName | Literal[""] = ""


class HookData(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A hook as it is stored with an operation, without its handler.

    Attributes:
        id: The hook's id.
        type: The event.
        tool: Glob over `toolset/tool_name`.
        webhook: The webhook.
        tenant_id: Only for events of this tenant; `""` for every tenant.
        inherit: Whether sub-agents inherit the hook.
        shadow: Of a control: whether its answers are only recorded.
        revision: The revision of the stored definition that made it; 0 for any other hook.
    """

    id: str
    type: HookType
    tool: str | None = None
    webhook: Webhook
    tenant_id: str = ""
    inherit: bool = False
    shadow: bool = False
    revision: int = 0

    def wants(self, event: Event) -> bool:
        """Return whether an event is delivered to the webhook."""
        if event.hook_type is not self.type or self.webhook.control:
            return False
        if self.tenant_id and self.tenant_id != event.tenant_id:
            return False
        is_meant = tool_matcher(self.tool) if isinstance(event, TOOL_EVENTS) else None
        if is_meant is not None and not is_meant(f"{event.toolset}/{event.tool_name}"):  # type: ignore[union-attr]
            return False
        return self.webhook.dialect == "hookline" or is_asked(self.webhook, msgspec.to_builtins(event, enc_hook=str))


class Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """One delivery to a webhook.

    Attributes:
        id: The id of the delivery, the same in every attempt.
        hook: The hook.
        operation_id: The run.
        tenant_id: The tenant for whom it runs.
        number: The number of the event in its operation, from 1; `None` if no store has numbered it.
        payload: The JSON to send.
        type: What is delivered, if it is no event: `"fellBackToShadow"`; by default, the type of the hook.
    """

    id: str
    hook: HookData
    operation_id: str
    tenant_id: str = ""
    number: int | None = None
    payload: bytes
    type: str = ""


class ControlAnswer(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The answer of a control webhook, as JSON. An empty object allows the call.

    Attributes:
        decision: `"allow"`, `"deny"`, `"answer"` (a mock), or `"ask"` (a person).
        reason: The reason of a denial, or the question to the person.
        args: With `"allow"`: changed arguments for the call.
        result: With `"answer"`: `content`, and optionally `success` and `metadata`, as a mock.
        stop: With `"deny"`: whether the run ends too.
        additional_context: With any decision: a text that the model reads with the result of the call. It is left out
            of the JSON if there is none.
    """

    decision: Literal["allow", "deny", "answer", "ask"] = "allow"
    reason: str = ""
    args: dict[str, Any] | None = None
    result: dict[str, Any] | str | None = None
    stop: bool = False
    additional_context: str | msgspec.UnsetType = msgspec.UNSET


ServedBy: TypeAlias = Callable[[Envelope], Awaitable[ControlAnswer | None]]
"""A function that takes deliveries in a process; what it returns answers a control."""


class Delivery(Protocol):
    """Delivers events to webhooks. Implement it to send events in another way."""

    async def publish(self, envelopes: Sequence[Envelope]) -> None:
        """Accept envelopes for delivery, in order. When this returns, they are handed over.

        Raises:
            DeliveryError: If one was not handed over. The others were still tried.
        """
        ...

    async def request(self, envelope: Envelope, *, timeout: float) -> ControlAnswer:
        """Send a call to a control webhook, and return its answer.

        Args:
            envelope: The call, as an envelope.
            timeout: Time limit for the answer, in seconds.

        Raises:
            DeliveryError: If there was no valid answer in time.
        """
        ...

    def serve(self, name: str, handler: ServedBy) -> AbstractAsyncContextManager[None]:
        """Receive deliveries to `local://name` while the context is open."""
        ...

    async def aclose(self) -> None:
        """Close connections."""
        ...


def webhook_of(given: object, where: str) -> Webhook:
    """Return a webhook that is given as the struct, or as a mapping with keys in either spelling.

    Raises:
        HookDefinitionError: With what is wrong and how to fix it.
    """
    fields = msgspec.structs.asdict(given) if isinstance(given, Webhook) else given  # a struct checks no types itself
    if not isinstance(fields, Mapping):
        raise HookDefinitionError(where, f"`webhook` must be a Webhook or a mapping with a `url`; got {quote(given)}")
    spelled = {to_camel(key) if isinstance(key, str) else key: value for key, value in fields.items()}
    try:
        return msgspec.convert(spelled, Webhook)
    except msgspec.ValidationError as error:
        raise HookDefinitionError(where, f"`webhook` is invalid: {error}; see the fields of `Webhook`") from error


def check_webhook(webhook: Webhook, event: type[Event], where: str) -> None:
    """Refuse a webhook that could never be delivered, or that could do harm.

    Raises:
        HookDefinitionError: With what is wrong and how to fix it.
    """
    _check_url(webhook.url, where)
    fields = {*event.__struct_encode_fields__, "type"}
    unknown = sorted(set(webhook.event_fields or ()) - fields)
    if unknown:
        raise HookDefinitionError(
            where, f"{event.__name__} has no fields {unknown}; choose `event_fields` from: {', '.join(sorted(fields))}"
        )
    taken = sorted(set(webhook.body) & (fields | set(RESERVED_KEYS)))
    if taken:
        raise HookDefinitionError(where, f"`body` may not replace the event's own fields {taken}; rename them")
    if not 0.1 <= webhook.timeout <= 300:
        raise HookDefinitionError(where, f"`timeout` of a webhook must be 0.1 to 300 seconds; got {webhook.timeout!r}")
    if webhook.control and event.hook_type is not HookType.BEFORE_TOOL_CALL:
        raise HookDefinitionError(
            where, "a `control` webhook decides about tool calls, so its type must be `beforeToolCall`"
        )
    if webhook.control and webhook.fallback == "none":
        raise HookDefinitionError(
            where, "a `control` webhook has `on_error` instead of `fallback`; leave `fallback` out"
        )
    _check_headers(webhook, where)
    check_json(msgspec.structs.asdict(webhook), where)
    problem = find_dialect_problem(
        webhook.dialect, event.hook_type.value, host_event=webhook.host_event, matcher=webhook.matcher
    )
    if problem is None and webhook.host_event == "PermissionRequest":
        problem = (
            "host_event",
            "cannot be 'PermissionRequest': it is about one call, and the event has all of them",
        )
    if problem is not None:
        raise HookDefinitionError(where, f"`{problem[0]}` {problem[1]}")
    if webhook.dialect != "hookline" and (webhook.event_fields is not None or webhook.body):
        name = "body" if webhook.body else "event_fields"
        raise HookDefinitionError(where, f"the payload is what the dialect {webhook.dialect!r} has; leave `{name}` out")


def find_dialect_problem(dialect: str, point: str, *, host_event: str, matcher: str) -> tuple[str, str] | None:
    """Return what is wrong with the dialect of a hook: the name of the field and the problem; `None` if nothing is.

    Args:
        dialect: The dialect.
        point: The point at which the hook stands.
        host_event: The event that it is for; `""` for the usual one at the point.
        matcher: Its matcher.
    """
    if dialect == "hookline":
        for name, given in (("host_event", host_event), ("matcher", matcher)):
            if given:
                return name, "is only for hooks of another dialect; set `dialect`, or leave it out"
        return None
    spoken = DIALECTS[dialect]
    names = [event.name for event in events_at(spoken, point)]
    if not names:
        return "dialect", f"{dialect!r} has no event at {point}"
    if host_event and host_event not in names:
        return "host_event", f"must be {' or '.join(map(repr, names))} at {point}; got {host_event!r}"
    if len(matcher) > LONGEST_MATCHER:
        return "matcher", f"must have at most {LONGEST_MATCHER} characters"
    problem = matcher_problem(spoken, matcher)
    return ("matcher", f"cannot be used: {problem}") if problem else None


def check_json(fields: Mapping[str, object], where: str) -> None:
    """Refuse fields that could not travel with an operation.

    Raises:
        HookDefinitionError: With the field that JSON cannot represent.
    """
    for name, value in fields.items():
        try:
            msgspec.json.encode(value)
            check_finite(name, value)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise HookDefinitionError(
                where,
                f"`{name}` cannot be written as JSON: {error}; give text of whole characters, finite numbers, lists "
                "and mappings",
            ) from error


def _check_url(url: str, where: str) -> None:
    if any(character <= " " or character == "\x7f" for character in url):
        raise HookDefinitionError(where, "`url` may not contain spaces or control characters")
    if len(url) > LONGEST_URL or not url.isascii():
        raise HookDefinitionError(
            where, f"`url` must have at most {LONGEST_URL} characters, all ASCII; encode others (`%C3%A9`, `xn--...`)"
        )
    try:
        parts: SplitResult = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise HookDefinitionError(where, f"`url` cannot be parsed: {error}") from error
    if parts.scheme not in SCHEMES or not host:
        raise HookDefinitionError(
            where, "`url` must be an absolute URL with a host that begins with https://, http:// or local://"
        )
    if parts.username is not None or parts.password is not None:
        raise HookDefinitionError(where, "`url` may not contain a user or a password; use a header instead")


def _check_headers(webhook: Webhook, where: str) -> None:
    for name, value in webhook.headers.items():
        if not HEADER_NAME.fullmatch(name) or name.lower() in RESERVED_HEADERS:
            raise HookDefinitionError(where, f"`headers` may not set {name!r}")
        if CONTROL_CHARACTER.search(value):
            raise HookDefinitionError(
                where, f"the header {name!r} may not contain line breaks or other control characters; leave them out"
            )
        for variable in VARIABLE.findall(value):
            if variable not in webhook.allowed_env_vars:
                raise HookDefinitionError(
                    where, f"the header {name!r} uses ${{{variable}}}, which is not in `allowed_env_vars`"
                )


def payload_of(hook: HookData, wire: Mapping[str, Any]) -> bytes:
    """Return the payload of an event: its wire fields, `hookId`, and the hook's `body`, which replaces no field.

    Args:
        hook: The hook.
        wire: The event, as JSON has it.
    """
    if hook.webhook.dialect != "hookline":
        return msgspec.json.encode(_question_of(hook.webhook, wire).document)
    wanted = hook.webhook.event_fields
    fields = wire if wanted is None else {name: wire[name] for name in ("type", *wanted) if name in wire}
    return msgspec.json.encode({**hook.webhook.body, **fields, "hookId": hook.id})


def _question_of(webhook: Webhook, wire: Mapping[str, Any]) -> HostQuestion:
    return build_question(DIALECTS[webhook.dialect], wire["type"], wire, host_event=webhook.host_event)


def is_asked(webhook: Webhook, wire: Mapping[str, Any]) -> bool:
    """Return whether a hook of another dialect is for an event: by its matcher, and whether its host would have it.

    Args:
        webhook: The webhook.
        wire: The event, as JSON has it.
    """
    question = _question_of(webhook, wire)
    return question.applies and matches(DIALECTS[webhook.dialect], webhook.matcher, question.subject)


def delivery_id(operation_id: str, number: int | str, hook_id: str, nth: int) -> str:
    """Return the id of a delivery, the same for the same hook and event.

    Args:
        operation_id: The run.
        number: Of the event.
        hook_id: The hook.
        nth: Its place among the hooks of the operation, since ids need not be unique.
    """
    told = "\0".join((operation_id, str(number), hook_id, str(nth)))
    return f"msg_{sha256(told.encode(errors='surrogatepass')).hexdigest()[:32]}"


def to_camel(key: str) -> str:
    """Return the camelCase spelling of a snake_case key; one that is in camelCase already stays as it is."""
    first, *rest = key.split("_")
    return first + "".join(word.title() for word in rest)
