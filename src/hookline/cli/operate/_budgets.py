"""`hookline budgets`: list what budgets have counted, show one window, and start one again."""

from __future__ import annotations

from time import time
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from hookline.cli._commands import CommandApp, ListGroup
from hookline.cli._terminal import (
    Column,
    format_age,
    format_full_time,
    format_status,
    make_copyable,
    print_list,
    print_result,
    time_field,
)
from hookline.cli.errors import UnknownBudgetError
from hookline.cli.operate._store import DEFAULT_STORE, AsJson, Limit, StoreUrl, Tenant, actor, operate

if TYPE_CHECKING:
    from hookline.budgets import Amounts, BudgetFigures
    from hookline.store import SqlStore

__all__ = ["budgets_app"]

MOST = 1000
"""Windows that are listed at most."""

budgets_app = CommandApp(name="budgets", cls=ListGroup, help="Show what budgets have counted, and reset them.")

WindowId = Annotated[str, typer.Argument(metavar="ID", help="The window, as `hookline budgets list` shows it.")]


@budgets_app.command("list")
def list_budgets(
    store: StoreUrl = DEFAULT_STORE,
    tenant: Tenant = None,
    budget: Annotated[str | None, typer.Option(metavar="ID", help="Only windows of this budget.")] = None,
    ended: Annotated[bool, typer.Option("--ended", help="Also windows that have ended.")] = False,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    """List the windows of budgets, those that changed last first."""
    shown = min(limit, MOST)

    async def look(store: SqlStore) -> list[BudgetFigures]:
        return await store.budgets(tenant_id=tenant, budget_id=budget, open_only=not ended, limit=min(shown + 1, MOST))

    found = operate(store, look)
    print_list(
        found[:shown], _columns(), as_json=as_json, nothing="No budget has counted anything.", more=len(found) > shown
    )


@budgets_app.command("show")
def show_budget(
    id: WindowId,  # noqa: A002
    store: StoreUrl = DEFAULT_STORE,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """Show what a budget has counted in one window."""

    async def look(store: SqlStore) -> BudgetFigures:
        return await _find(store, id, tenant)

    found = operate(store, look)
    print_result(found, _fields(found), as_json=as_json)


@budgets_app.command("reset")
def reset_budget(
    id: WindowId,  # noqa: A002
    store: StoreUrl = DEFAULT_STORE,
    tenant: Tenant = None,
    as_json: AsJson = False,
) -> None:
    """Start the counts of a window again, and open it if it was closed.

    Calls that are running keep what they have reserved.
    """

    async def reset(store: SqlStore) -> BudgetFigures:
        from hookline.server import write_audit_alone

        await _find(store, id, tenant)
        before = await store.reset_budget(id)
        if before is None:
            raise UnknownBudgetError(id)
        detail: dict[str, Any] = msgspec.to_builtins(before)
        await write_audit_alone(store, before.scope.tenant_id, actor(), "budget.reset", id, detail=detail)
        return before

    before = operate(store, reset)
    used = _text(before, before.used)
    print_result({"id": id, "before": before}, f"Reset {make_copyable(id)}: {used} had been used.", as_json=as_json)


async def _find(store: SqlStore, id: str, tenant: str | None) -> BudgetFigures:  # noqa: A002
    """Return the counts of a window, if it is there and the tenant's.

    Raises:
        UnknownBudgetError: If not.
    """
    found = await store.budget_figures(id)
    if found is None or tenant not in (None, found.scope.tenant_id):
        raise UnknownBudgetError(id)
    return found


def _text(figures: BudgetFigures, amounts: Amounts) -> str:
    """Return amounts as text, empty for none."""
    from hookline.budgets import format_amounts

    return format_amounts(amounts, figures.limits) if amounts else ""


def _fields(figures: BudgetFigures) -> list[tuple[str, object]]:
    scope = figures.scope
    return [
        ("id", figures.id),
        ("budget", make_copyable(scope.budget_id)),
        ("tenant", make_copyable(scope.tenant_id) if scope.tenant_id else ""),
        ("per", scope.per),
        ("key", make_copyable(scope.key) if scope.key else ""),
        ("state", format_status(figures.state(time()))),
        ("window", figures.window or "all time"),
        ("starts", format_full_time(figures.start) if figures.start else ""),
        time_field("ends", figures.end),
        ("limit", _text(figures, figures.limits)),
        ("used", _text(figures, figures.used) or "nothing"),
        ("reserved", _text(figures, figures.reserved)),
        ("overrun", _text(figures, figures.overrun)),
        ("allowed beyond", _text(figures, figures.allowed)),
        time_field("changed", figures.updated_at),
    ]


def _columns() -> list[Column[BudgetFigures]]:
    return [
        Column("id", lambda each: each.id),
        Column("budget", lambda each: each.scope.budget_id, cut=True),
        Column("per", lambda each: each.scope.per, rank=2),
        Column("key", lambda each: each.scope.key, rank=1, cut=True),
        Column("state", lambda each: format_status(each.state(time()))),
        Column("used", lambda each: _text(each, each.used), rank=1, right=True),
        Column("reserved", lambda each: _text(each, each.reserved), rank=2, right=True),
        Column("limit", lambda each: _text(each, each.limits), rank=1, right=True),
        Column("overrun", lambda each: _text(each, each.overrun), rank=3, right=True),
        Column("window", lambda each: each.window or "all time", rank=4),
        Column("tenant", lambda each: each.scope.tenant_id, rank=5),
        Column("changed", lambda each: format_age(each.updated_at), rank=6, right=True),
    ]
