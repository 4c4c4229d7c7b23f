"""Every route of the page, and how it is asked: on which objects, with which parameters, and with which form.

The forms are not written here: they are read from the views that show them, as a browser does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

import httpx

from hookline.budgets import Amounts, BudgetRequest, BudgetScope
from hookline.calls import Message
from hookline.delivery import EndpointSecrets, KeyRing
from hookline.events import PendingTool
from hookline.runtime import Approve, OperationState
from hookline.server._callers import Scope
from hookline.server.page import (
    _approvals,
    _audit,
    _budgets,
    _dashboard,
    _deliveries,
    _endpoints,
    _keys,
    _logs,
    _operation,
    _page,
    _settings,
    hooks,
)
from hookline.server.page import _operations as _operation_list
from hookline.store._decisions import make_seen_token
from tests.server import site as made
from tests.server.site import Site, key
from tests.server.test_page_guards import done

__all__ = ["CASES", "ROUTE_SCOPES", "Case", "Form", "Made", "find_form", "name_place", "read_forms"]

VIEWS = (
    *(_dashboard, _operation_list, _operation, _approvals, hooks, _logs, _deliveries, _endpoints, _keys, _audit),
    *(_budgets, _settings),
)
UNGUARDED = (_page.redirect_home, _page.show_sign_in, _page.sign_in, _page.sign_out)
ROUTE_SCOPES: dict[tuple[str, str], Scope | None] = {
    (method, path): handler.opt.get("scope")
    for handler in (*UNGUARDED, *(route for view in VIEWS for route in view.ROUTES))
    for path in handler.paths
    for method in sorted(handler.http_methods)
}
"""The scope of each route of the page, by method and path."""


@dataclass(frozen=True)
class Made:
    """An object that a route is about.

    Attributes:
        id: Its id.
        values: What else its address names, by the names of fields.
        words: Texts that only somebody who may see it may read.
    """

    id: str = ""
    values: Mapping[str, str] = field(default_factory=dict)
    words: tuple[str, ...] = ()


@dataclass(frozen=True)
class Case:
    """How a route is asked.

    Attributes:
        address: Where it is, with `{id}` and the names of `Made.values`.
        make: Makes an object of an owner.
        asks: The parameters of its query that it reads.
        listed: Whether it lists objects, so that it is there for everybody, with fewer of them.
        view: The view that shows its form.
        fill: What is typed or pressed in the form.
        status: The status of the answer, if all is well.
        again: The statuses of the answer if the same form is sent once more.
        endless: Whether the answer never ends.
        system: Whether its objects are of the system, so that only its administrators have the form.
    """

    address: str
    make: Callable[[Site, str], Made] | None = None
    asks: tuple[str, ...] = ()
    listed: bool = False
    view: str = ""
    fill: Mapping[str, str] = field(default_factory=dict)
    status: int = 200
    again: tuple[int, ...] = ()
    endless: bool = False
    system: bool = False


@dataclass
class Form:
    """A form as a browser sees it.

    Attributes:
        action: Where it goes.
        method: How.
        fields: Its fields and what they hold, in their order; buttons are not among them.
        buttons: Its buttons that send something.
    """

    action: str
    method: str
    fields: list[tuple[str, str]] = field(default_factory=list)
    buttons: list[tuple[str, str]] = field(default_factory=list)
    names: set[str] = field(default_factory=set)


class _FormReader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.forms: list[Form] = []
        self.links: list[str] = []
        self._select: str | None = None
        self._option: str | None = None
        self._value: str | None = None
        self._is_chosen = False
        self._textarea: str | None = None
        self._text = ""

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attributes}
        self.links += [given[name] for name in ("href", "hx-get", "hx-sse:connect", "src") if name in given]
        if tag == "form":
            self.forms.append(Form(given.get("action", ""), given.get("method", "get")))
        if not self.forms:
            return
        form, name = self.forms[-1], given.get("name", "")
        if name:
            form.names.add(name)
        if tag == "input" and name and (given.get("type") != "checkbox" or "checked" in given):
            form.fields.append((name, given.get("value", "")))
        elif tag == "button" and name:
            form.buttons.append((name, given.get("value", "")))
        elif tag == "select":
            self._select, self._option = name, None
        elif tag == "option" and self._select:
            self._text, self._value = "", given.get("value")
            self._is_chosen = self._option is None or "selected" in given
        elif tag == "textarea":
            self._textarea, self._text = name, ""

    def handle_endtag(self, tag: str) -> None:
        if tag == "option" and self._select and self._is_chosen:
            self._option = self._text if self._value is None else self._value
        if tag == "select" and self._select:
            self.forms[-1].fields.append((self._select, self._option or ""))
            self._select = None
        if tag == "textarea" and self._textarea:
            self.forms[-1].fields.append((self._textarea, self._text.removeprefix("\n")))
            self._textarea = None

    def handle_data(self, data: str) -> None:
        self._text += data


def read_forms(text: str) -> tuple[list[Form], list[str]]:
    """Read the forms and the addresses of a view."""
    reader = _FormReader()
    reader.feed(text)
    return reader.forms, reader.links


def find_form(person: httpx.Client, case: Case, its: Made) -> dict[str, Any]:
    """Find the form of a route in the view that shows it, filled in; its fields as they are to be sent."""
    place = name_place(case.address, its)
    answer = person.get(name_place(case.view, its))
    assert answer.status_code == 200, answer.text
    forms, _ = read_forms(answer.text)
    form = next((each for each in forms if each.method == "post" and each.action == f"/page{place}"), None)
    assert form is not None, answer.text
    fields: dict[str, Any] = {}
    for name, value in form.fields:
        fields[name] = [*fields[name], value] if name in fields else [value]
    filled = {name: _fill(value, its) for name, value in case.fill.items()}
    assert not set(filled) - form.names - {"do"}, form
    return fields | filled


def name_place(address: str, its: Made) -> str:
    """Return an address with an object in it."""
    return _fill(
        address, Made(quote(its.id, safe=""), {name: quote(each, safe="") for name, each in its.values.items()})
    )


def _fill(text: str, its: Made) -> str:
    for name, value in {"new": made.new_id("new"), "id": its.id, **its.values}.items():
        text = text.replace(f"{{{name}}}", value)
    return text


def read_query_names(link: str) -> tuple[str, set[str]]:
    """Return the path of a link, and the names in its query."""
    parts = urlsplit(link)
    return parts.path, {name for name, _ in parse_qsl(parts.query, keep_blank_values=True)}


def hook(site: Site, owner: str) -> Made:
    given = {"name": made.new_id("hook"), "point": "ToolCall.guard", "handler": "deny", "tenantId": owner}
    found = done(site, site.server.registry.create(given, actor="cli:ann"))
    done(site, site.server.registry.update(found.id, {"priority": 7}, tenant_id=owner, actor="cli:ann"))
    return Made(found.id, {"tenant": owner, "name": found.name, "first": str(found.revision)}, (found.id, found.name))


def left_out_hook(site: Site, owner: str) -> Made:
    return hook(site, owner)


def ordered_hooks(site: Site, owner: str) -> Made:
    first, second = hook(site, owner), hook(site, owner)
    return Made(second.id, {"tenant": owner}, (*first.words, *second.words))


def deleted_hook(site: Site, owner: str) -> Made:
    its = hook(site, owner)
    done(site, site.server.registry.delete(its.id, tenant_id=owner))
    return its


def waiting(site: Site, owner: str) -> Made:
    prompt = made.new_id("prompt")
    pending = PendingTool(toolset="bank", tool_name="pay", tool_call_id="call", args={"to": prompt}, prompt=prompt)
    its = done(site, made.operation(site.server.store, owner, pending=[pending]))
    state = done(site, site.server.store.load(its))
    assert state is not None
    return Made(its, {"seen": make_seen_token(state, pending)}, (its, prompt))


def decided(site: Site, owner: str) -> Made:
    its = waiting(site, owner)
    done(site, site.server.store.decide(its.id, Approve("call"), by="cli:ann"))
    return its


def ended(site: Site, owner: str) -> Made:
    its, prompt = made.new_id("op"), made.new_id("prompt")
    state = OperationState(
        operation_id=its,
        agent_id="support",
        tenant_id=owner,
        status="done",
        messages=[Message(role="user", content=prompt)],
    )
    done(site, site.server.store.commit(state, expected_version=None, entries=()))
    return Made(its, {}, (its, prompt))


def execution(site: Site, owner: str) -> Made:
    its = done(site, made.execution(site, owner))
    return Made(its, {}, (its,))


def budget(site: Site, owner: str) -> Made:
    its = made.new_id("budget")
    request = BudgetRequest(
        id=its,
        scope=BudgetScope(tenant_id=owner, budget_id=its, per="user", key=f"{its}-user"),
        limits=Amounts(tokens=100),
        amounts=Amounts(tokens=30),
    )
    done(site, site.server.store.reserve_budget(request))
    return Made(its, {}, (its,))


def dead(site: Site, owner: str) -> Made:
    its = done(site, made.delivery(site.server.store, owner))
    return Made(its, {}, (its,))


def delivered(site: Site, owner: str) -> Made:
    its = done(site, made.delivery(site.server.store, owner, status="delivered"))
    return Made(its, {}, (its,))


def disabled(site: Site, owner: str) -> Made:
    url = done(site, made.endpoint(site.server.store, owner))
    return Made("", {"url": url, "tenant": owner}, (url,))


def secret(site: Site, owner: str) -> Made:
    secrets = EndpointSecrets(site.server.store, made.MASTER, environment=KeyRing())
    its = done(site, secrets.rotate(owner, f"https://{made.new_id('receiver')}.example/in"))
    return Made(its.id, {"url": its.url, "tenant": owner}, (its.id, its.url))


def api_key(site: Site, owner: str) -> Made:
    """A key whose scopes a key with the scope of the routes of keys has, too."""
    its = done(site, key(site.server.store, owner, ["hooks:admin"])).split("_")[1]
    return Made(its, {}, (its,))


OPERATIONS = (
    "q",
    "status",
    "tenant",
    "agent",
    "user",
    "tag",
    "tool",
    "range",
    "from",
    "to",
    "sort",
    "column",
    "cursor",
)
ABOUT_A_CALL = "operation={id}&call=call&seen={seen}"
HOOK = "/hooks/{id}?tenant={tenant}"

CASES: dict[tuple[str, str], Case] = {
    ("GET", "/"): Case("/", status=303),
    ("GET", "/sign-in"): Case("/sign-in", asks=("place",), status=303),
    ("POST", "/sign-in"): Case("/sign-in", view="/sign-in", fill={"key": "hk_no_key"}, status=401),
    ("POST", "/sign-out"): Case("/sign-out", view="/hooks", status=303),
    ("GET", "/overview"): Case("/overview", waiting, ("tenant", "agent", "range"), listed=True),
    ("GET", "/operations"): Case("/operations", waiting, OPERATIONS, listed=True),
    ("GET", "/operations/live"): Case("/operations/live", waiting, (*OPERATIONS, "seen"), listed=True, endless=True),
    ("GET", "/operations/{id:str}"): Case("/operations/{id}", waiting, ("after", "notice")),
    ("GET", "/operations/{id:str}/live"): Case(
        "/operations/{id}/live", waiting, ("calls", "events", "seen"), endless=True
    ),
    ("GET", "/operations/{id:str}/steps"): Case("/operations/{id}/steps", waiting, ("after",)),
    ("GET", "/operations/{id:str}/messages"): Case("/operations/{id}/messages", ended, ("after",)),
    ("GET", "/operations/{id:str}/messages/{number:int}"): Case("/operations/{id}/messages/1", ended),
    ("GET", "/operations/{id:str}/events/{number:int}"): Case("/operations/{id}/events/1", waiting),
    ("GET", "/operations/{id:str}/waterfall.json"): Case("/operations/{id}/waterfall.json", waiting),
    ("POST", "/operations/{id:str}/interrupt"): Case(
        "/operations/{id}/interrupt", waiting, view="/operations/{id}", status=303, again=(303,)
    ),
    ("POST", "/operations/{id:str}/retry"): Case(
        "/operations/{id}/retry", ended, view="/operations/{id}", status=303, again=(303,)
    ),
    ("GET", "/approvals"): Case("/approvals", waiting, ("tenant", "agent", "tool", "age", "cursor"), listed=True),
    ("GET", "/approvals/live"): Case(
        "/approvals/live", asks=("tenant", "agent", "tool", "age", "cursor", "seen"), listed=True, endless=True
    ),
    ("GET", "/approvals/count.json"): Case("/approvals/count.json"),
    ("GET", "/approvals/conversation"): Case("/approvals/conversation?operation={id}", waiting, ("operation",)),
    ("POST", "/approvals"): Case(
        "/approvals",
        waiting,
        view="/operations/{id}",
        fill={"decision": "approve", "reason": "said"},
        status=303,
        again=(303,),
    ),
    ("GET", "/approvals/decided"): Case(
        f"/approvals/decided?{ABOUT_A_CALL}", decided, ("operation", "call", "seen", "back")
    ),
    ("GET", "/approvals/decisions"): Case(
        "/approvals/decisions",
        decided,
        ("text", "decision", "by", "agent", "operation", "tenant", "within", "from", "to", "cursor"),
        listed=True,
    ),
    ("GET", "/approvals/equal"): Case(
        f"/approvals/equal?{ABOUT_A_CALL}", waiting, ("operation", "call", "seen", "back")
    ),
    ("POST", "/approvals/equal"): Case(
        "/approvals/equal",
        waiting,
        view=f"/approvals/equal?{ABOUT_A_CALL}",
        fill={"decision": "reject", "reason": "no"},
        again=(200,),
    ),
    ("GET", "/hooks"): Case("/hooks", hook, ("point", "enabled", "tenant", "text", "cursor", "notice"), listed=True),
    ("GET", "/hooks/new"): Case(
        "/hooks/new", asks=("point", "tenantId", "tool", "config", "config.reason", "handler", "runs", "id")
    ),
    ("POST", "/hooks/new"): Case(
        "/hooks/new",
        view="/hooks/new?handler=deny",
        fill={"name": "{new}", "do": "save"},
        status=303,
        again=(303,),
    ),
    ("GET", "/hooks/order"): Case("/hooks/order", ordered_hooks, ("point", "tenant", "notice", "fence"), listed=True),
    ("POST", "/hooks/order"): Case(
        "/hooks/order",
        ordered_hooks,
        view="/hooks/order?tenant={tenant}",
        fill={"move": "earlier:{id}"},
        status=303,
        again=(303,),
    ),
    ("GET", "/hooks/deleted"): Case("/hooks/deleted", deleted_hook, ("tenant", "cursor", "notice"), listed=True),
    ("GET", "/hooks/{id:str}"): Case(HOOK, hook, ("tenant", "notice")),
    ("GET", "/hooks/{id:str}/matches"): Case("/hooks/{id}/matches?tenant={tenant}", hook, ("tenant",)),
    ("GET", "/hooks/{id:str}/edit"): Case("/hooks/{id}/edit?tenant={tenant}", hook, ("tenant",)),
    ("POST", "/hooks/{id:str}/edit"): Case(
        "/hooks/{id}/edit",
        hook,
        view="/hooks/{id}/edit?tenant={tenant}",
        fill={"description": "changed", "do": "save"},
        status=303,
        again=(303,),
    ),
    ("POST", "/hooks/{id:str}/switch"): Case(
        "/hooks/{id}/switch", hook, view=HOOK, fill={"enabled": "no"}, status=303, again=(303,)
    ),
    ("POST", "/hooks/{id:str}/rollout"): Case(
        "/hooks/{id}/rollout",
        hook,
        view=HOOK,
        fill={"percent": "5", "mode": "enforce"},
        status=303,
        again=(303,),
    ),
    ("POST", "/hooks/{id:str}/tenants"): Case(
        "/hooks/{id}/tenants", left_out_hook, view=HOOK, fill={"off": "acme"}, status=303, again=(303,), system=True
    ),
    ("GET", "/hooks/{id:str}/delete"): Case("/hooks/{id}/delete?tenant={tenant}", hook, ("tenant",)),
    ("POST", "/hooks/{id:str}/delete"): Case(
        "/hooks/{id}/delete", hook, view="/hooks/{id}/delete?tenant={tenant}", status=303, again=(409,)
    ),
    ("GET", "/hooks/{id:str}/history"): Case("/hooks/{id}/history?tenant={tenant}", hook, ("tenant", "cursor")),
    ("POST", "/hooks/{id:str}/revert"): Case(
        "/hooks/{id}/revert", hook, view=HOOK, fill={"to": "{first}"}, status=303, again=(409,)
    ),
    ("POST", "/hooks/{id:str}/try"): Case("/hooks/{id}/try", hook, view=HOOK, again=(200,)),
    ("POST", "/hooks/{id:str}/backtest"): Case(
        "/hooks/{id}/backtest", hook, view=HOOK, fill={"days": "7"}, again=(200, 429)
    ),
    ("GET", "/hooks/{id:str}/backtest"): Case("/hooks/{id}/backtest?tenant={tenant}", hook, ("tenant", "run", "days")),
    ("GET", "/logs"): Case(
        "/logs",
        execution,
        ("hook", "point", "status", "operation", "revision", "tenant", "from", "to", "cursor"),
        listed=True,
    ),
    ("GET", "/statistics"): Case("/statistics", execution, ("tenant", "by", "span", "hook"), listed=True),
    ("GET", "/budgets"): Case("/budgets", budget, ("budget", "tenant", "ended"), listed=True),
    ("GET", "/deliveries"): Case(
        "/deliveries", dead, ("status", "endpoint", "operation", "hook", "tenant", "cursor", "notice"), listed=True
    ),
    ("GET", "/deliveries/{id:str}"): Case("/deliveries/{id}", dead, ("notice",)),
    ("POST", "/deliveries/{id:str}/retry"): Case(
        "/deliveries/{id}/retry", dead, view="/deliveries/{id}", status=303, again=(303, 409)
    ),
    ("POST", "/deliveries/{id:str}/replay"): Case(
        "/deliveries/{id}/replay", delivered, view="/deliveries/{id}", status=303, again=(303,)
    ),
    ("GET", "/endpoints"): Case("/endpoints", disabled, ("text", "state", "tenant", "notice"), listed=True),
    ("POST", "/endpoints"): Case(
        "/endpoints", disabled, view="/endpoints/one?url={url}&tenant={tenant}", status=303, again=(303, 404)
    ),
    ("GET", "/endpoints/one"): Case("/endpoints/one?url={url}&tenant={tenant}", disabled, ("url", "tenant", "notice")),
    ("POST", "/endpoints/secrets"): Case(
        "/endpoints/secrets", secret, view="/endpoints/one?url={url}&tenant={tenant}", again=(409,)
    ),
    ("GET", "/endpoints/secrets/{id:str}/revoke"): Case("/endpoints/secrets/{id}/revoke", secret),
    ("POST", "/endpoints/secrets/{id:str}/revoke"): Case(
        "/endpoints/secrets/{id}/revoke", secret, view="/endpoints/secrets/{id}/revoke", status=303, again=(303, 404)
    ),
    ("GET", "/keys"): Case("/keys", api_key, ("state", "tenant", "text", "notice"), listed=True),
    ("GET", "/keys/new"): Case("/keys/new"),
    ("POST", "/keys"): Case(
        "/keys", view="/keys/new", fill={"name": "made by a form", "scope": "hooks:admin"}, again=(409,)
    ),
    ("GET", "/keys/{id:str}/rotate"): Case("/keys/{id}/rotate", api_key),
    ("POST", "/keys/{id:str}/rotate"): Case("/keys/{id}/rotate", api_key, view="/keys/{id}/rotate", again=(409,)),
    ("GET", "/keys/{id:str}/revoke"): Case("/keys/{id}/revoke", api_key),
    ("POST", "/keys/{id:str}/revoke"): Case(
        "/keys/{id}/revoke", api_key, view="/keys/{id}/revoke", status=303, again=(303,)
    ),
    ("GET", "/audit"): Case(
        "/audit",
        api_key,
        ("text", "actor", "action", "target", "tenant", "within", "from", "to", "cursor"),
        listed=True,
    ),
    ("GET", "/audit/export"): Case(
        "/audit/export?format=csv",
        api_key,
        ("text", "actor", "action", "target", "tenant", "within", "from", "to", "format"),
        listed=True,
    ),
    ("GET", "/settings"): Case("/settings"),
}
"""How each route of the page is asked, by method and path."""
