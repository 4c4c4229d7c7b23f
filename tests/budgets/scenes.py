"""What these tests arrange with: requests of calls that count as a number of tool calls."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from hookline.budgets import Amounts, BudgetRequest, BudgetScope


def request(*, calls: int = 0, limits: int = 10, key: str = "ann", tenant: str = "", **more: Any) -> BudgetRequest:
    more.setdefault("id", uuid4().hex)
    return BudgetRequest(
        scope=BudgetScope(tenant_id=tenant, budget_id="team", per="user", key=key),
        limits=Amounts(calls=limits),
        amounts=Amounts(calls=calls),
        **more,
    )


def counts(amounts: Amounts) -> int:
    return amounts.calls
