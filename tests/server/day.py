"""Fill a store with a day of agents at work, for the pictures of the page: `python -m tests.server.day sqlite:///day.db`.

The runs are real: agents with scripted models, hooks that deny, answer and ask, sub-agents, webhooks, and people who
decide. Each run happens now, and what it has stored is moved back in time.
"""

from __future__ import annotations

import asyncio
import logging
import random
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from sqlalchemy import select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from hookline import (
    Agent,
    Approve,
    Deny,
    Hook,
    Hooks,
    ModelCall,
    ModelResponse,
    Reject,
    ToolCall,
    ToolRequest,
    ToolResult,
    Usage,
    exec_agent,
    resume_agent,
    tool,
)
from hookline.delivery import KeyRing, Outbox, generate_key
from hookline.errors import ModelError
from hookline.events import OnComplete, OnError
from hookline.registry import ExecutionLog, Registry
from hookline.server import KeyStore
from hookline.store import SqlStore, events
from hookline.store._tables import execution_hooks, executions, grouped_statistics, statistics

__all__ = ["fill"]

HOURS, RUNS = 24, 110
NANO = 1_000_000_000
SPARE_BITS = 11
"""Bits of the key of an execution below its microseconds."""
Turn = str | ToolRequest | list[ToolRequest] | Exception
TENANTS = ("acme", "globex", "initech")
USERS = {"acme": ("ann", "bob", "carla"), "globex": ("dmitri", "eve"), "initech": ("milton",)}
PRICES = {"claude-sonnet-5": (3.0, 15.0), "gpt-5.2-mini": (0.25, 2.0), "gemini-3-pro": (2.0, 12.0)}
"""US dollars for a million tokens read, and written."""
ORDERS = ("8812", "9040", "7731", "6120", "5518")
QUESTIONS = (
    "Where is my order {order}? It should have been here on Monday.",
    "I was charged twice for order {order}. Please refund one of the two payments.",
    "Can I still change the address of order {order}?",
    "The lamp of order {order} arrived broken. I want my money back.",
)


@tool(in_thread=False)
async def find_order(order: str) -> dict[str, Any]:
    """Find an order."""
    await asyncio.sleep(random.uniform(0.004, 0.03))
    return {"order": order, "status": "shipped", "carrier": "DHL", "total": 129.90, "items": ["desk lamp", "bulb E27"]}


@tool(in_thread=False)
async def search(query: str) -> list[dict[str, str]]:
    """Search the help pages."""
    await asyncio.sleep(random.uniform(0.005, 0.06))
    return [{"title": "Returns and refunds", "url": "/help/refunds"}, {"title": "Lost parcels", "url": "/help/lost"}]


@tool(needs_approval=True, in_thread=False)
async def refund(order: str, amount: float) -> str:
    """Pay money back."""
    await asyncio.sleep(0.02)
    return f"Refunded {amount:.2f} EUR for order {order}."


@tool(in_thread=False)
async def run_shell(command: str) -> str:
    """Run a command."""
    return "done"


@tool(in_thread=False)
async def charge_card(customer: str, amount: float) -> str:
    """Charge a card."""
    raise ConnectionError("the payment provider answered 503")


class Script:
    """A model that plays turns by the number of model calls so far, with the tokens and costs of a real one.

    Args:
        name: The model's name.
        turns: What it answers, one after another; the last is repeated.
    """

    provider = "example"

    def __init__(self, name: str, turns: Sequence[Turn]) -> None:
        self.name, self._turns = name, list(turns)

    async def respond(self, call: ModelCall) -> ModelResponse:
        """Answer with the next turn."""
        await asyncio.sleep(random.uniform(0.01, 0.08))
        done = sum(message.role == "assistant" for message in call.messages)
        turn = self._turns[min(done, len(self._turns) - 1)]
        if isinstance(turn, Exception):
            raise turn
        read = 400 + sum(len(message.content) for message in call.messages) // 3
        wrote = random.randint(40, 260)
        dear, dearer = PRICES[self.name]
        usage = Usage(input_tokens=read, output_tokens=wrote, cost_usd=(read * dear + wrote * dearer) / 1e6)
        if isinstance(turn, str):
            return ModelResponse(content=turn, usage=usage, model=self.name)
        asked = turn if isinstance(turn, list) else [turn]
        return ModelResponse(content="Let me look.", tool_calls=asked, usage=usage, model=self.name)


def support_of(order: str, kind: int) -> Agent:
    """Make the agent that answers customers, with the script of one kind of question."""
    looks = ToolRequest("find_order", {"order": order})
    scripts: list[list[Turn]] = [
        [looks, "Your parcel is with DHL and arrives tomorrow before noon."],
        [
            [looks, ToolRequest("search", {"query": "double charge"})],
            ToolRequest("refund", {"order": order, "amount": 129.90}),
            "I have refunded one of the two payments. It reaches your account within three days.",
        ],
        [looks, ToolRequest("search", {"query": "change address"}), "The parcel has left, so the address is fixed."],
        [
            looks,
            ToolRequest("refund", {"order": order, "amount": 64.95}),
            "I have refunded the lamp. You need not send it back.",
        ],
    ]
    return Agent(
        id="support",
        instructions="You answer customers of a lamp shop. Be brief and kind.",
        model=Script("claude-sonnet-5", scripts[kind]),
        tools=[find_order, search, refund],
    )


def coder() -> Agent:
    """Make an agent whose command a guard denies."""
    turns = [
        ToolRequest("run_shell", {"command": "pytest -q"}),
        ToolRequest("run_shell", {"command": "rm -rf / --no-preserve-root"}),
        "I could not clean up, so the old build stays.",
    ]
    return Agent(id="coder", model=Script("gpt-5.2-mini", turns), tools=[run_shell])


def researcher() -> Agent:
    """Make an agent that asks a sub-agent."""
    reader = Agent(
        id="reader",
        model=Script("gpt-5.2-mini", [ToolRequest("search", {"query": "E27 bulb 2026"}), "Three suppliers sell them."]),
        tools=[search],
    )
    turns = [
        ToolRequest("reader", {"instruction": "Find suppliers of E27 bulbs."}, toolset="agent"),
        "Three suppliers.",
    ]
    return Agent(id="researcher", model=Script("gemini-3-pro", turns), tools=[search], sub_agents=[reader])


def biller() -> Agent:
    """Make an agent whose tool fails."""
    turns = [ToolRequest("charge_card", {"customer": "c-104", "amount": 19.0}), "The payment provider is down."]
    return Agent(id="biller", model=Script("gpt-5.2-mini", turns), tools=[charge_card])


def make_hooks() -> list[Hooks | Hook]:
    """Make the hooks of the code: a guard, a mock and two webhooks, one of which nobody receives."""
    hooks = Hooks("shop")

    @hooks.guard(ToolCall, tool="run_shell", id="no-deletion")
    def deny_deletion(call: ToolCall) -> Deny | None:
        return Deny("Commands that delete need a person.") if "rm -rf" in call.args["command"] else None

    @hooks.around(ToolCall, tool="search", id="cached-search")
    async def answer_from_cache(call: ToolCall, proceed: Any) -> ToolResult:
        if call.args.get("query") == "change address":
            return ToolResult(content='[{"title": "Change an address", "url": "/help/address"}]')
        found: ToolResult = await proceed(call)
        return found

    told = Hook(id="told-crm", type=OnComplete, webhook={"url": "local://crm"})
    alarm = Hook(id="told-status-page", type=OnError, webhook={"url": "https://status.lamps.example/in"})
    return [hooks, told, alarm]


async def fill(url: str, *, runs: int = RUNS, seed: int = 7) -> str:
    """Fill an empty store.

    Args:
        url: The URL of the database.
        runs: How many agents run on the last day, about.
        seed: The seed of what is random.

    Returns:
        The API key of an administrator.
    """
    random.seed(seed)
    async with SqlStore(url) as store:
        key = await KeyStore(store).create(name="Ann, operations", tenant_id="", scopes=_all_scopes())
        await KeyStore(store).create(
            name="Bob, approvals", tenant_id="acme", scopes=("operations:read", "approvals:decide")
        )
        async with Registry(store) as registry:
            await _create_definitions(registry)
            outbox = Outbox(store, keys=KeyRing({"": [generate_key()]}), schedule=[0.0])
            async with outbox, outbox.serve("crm", _take):
                for nth, minutes in enumerate(_moments(runs)):
                    async with _moved(store, minutes * 60):
                        async with ExecutionLog(store, observers=True) as log:
                            await _run_one(store, registry, nth, is_new=minutes < 10)
                            await log.flush()
                        await outbox.idle()
        assert key.key is not None
        return key.key


def _all_scopes() -> Any:
    from hookline.server import SCOPES

    return SCOPES


async def _take(envelope: object) -> None:
    """Receive a webhook."""


async def _create_definitions(registry: Registry) -> None:
    definitions: list[dict[str, Any]] = [
        {
            "name": "Refunds need a person",
            "description": "Everything above 100 EUR is approved by somebody of the team.",
            "point": "ToolCall.guard",
            "handler": "require-approval",
            "config": {"tools": ["refund"], "prompt": "Pay this back?"},
            "priority": 10,
            "tags": ["money"],
        },
        {
            "name": "Ten searches at most",
            "point": "ToolCall.guard",
            "handler": "limit-calls",
            "config": {"tool": "search", "n": 10},
            "tenantId": "acme",
        },
        {
            "name": "Redact card numbers",
            "point": "ToolCall.after",
            "handler": "redact",
            "config": {"patterns": ["email"]},
            "tags": ["privacy"],
        },
    ]
    for each in definitions:
        await registry.create(each, actor="file:policies.toml")


def _moments(runs: int) -> list[int]:
    """Choose how many minutes ago each run was, the oldest first: more by day than by night."""
    chances = [2 + 6 * max(0.0, 1 - abs(10 - hour) / 9) for hour in range(HOURS)]
    minutes = [60 * hour + random.randrange(10, 60) for hour in random.choices(range(HOURS), chances, k=runs)]
    yesterday = [1440 + each for each in minutes[: runs // 2]]
    return sorted([0, 1, 3, 8, *minutes, *yesterday], reverse=True)


async def _run_one(store: SqlStore, registry: Registry, nth: int, *, is_new: bool) -> None:
    """Run one agent, with the decisions of people; a new run that asks keeps waiting."""
    tenant = TENANTS[min(int(random.expovariate(1.1)), 2)]
    user = random.choice(USERS[tenant])
    agent, prompt = _pick(nth, always_asks=is_new)
    hooks = [*make_hooks(), *registry.hooks(tenant)]
    ran = await exec_agent(agent, prompt, hooks=hooks, store=store, tenant_id=tenant, user_id=user)
    while ran.reason == "waiting_for_human" and not is_new:
        call, person = ran.pending[0].tool_call_id, random.choice(USERS["acme"])
        no = random.random() < 0.2
        given = Reject(call, "First ask for a photo of it.", and_continue=True) if no else Approve(call)
        await store.decide(ran.operation_id, given, by=f"user:{person}")
        ran = await resume_agent(agent, ran.operation_id, [given], hooks=hooks, store=store)


def _pick(nth: int, *, always_asks: bool) -> tuple[Agent, str]:
    """Choose an agent and what it is asked; the first five runs are of every kind."""
    which, order = (random.random() if nth > 4 else (0.0, 0.7, 0.8, 0.92, 0.99)[nth]), random.choice(ORDERS)
    if always_asks or which < 0.6:
        kind = random.choice((1, 3)) if always_asks or nth == 0 else random.choice((0, 0, 1, 2, 3))
        return support_of(order, kind), QUESTIONS[kind].format(order=order)
    if which < 0.75:
        return coder(), "Run the tests, then remove the old build."
    if which < 0.9:
        return researcher(), "Who sells E27 bulbs at less than 2 EUR?"
    if which < 0.96:
        return biller(), "Charge customer c-104 for November."
    return Agent(
        id="biller", model=Script("gpt-5.2-mini", [ModelError("429: too many tokens a minute")])
    ), "Sum up October."


@asynccontextmanager
async def _moved(store: SqlStore, seconds: int) -> AsyncIterator[None]:
    """Move what is stored inside of the block back by some seconds, a multiple of 60."""
    mark = await store.now()
    async with store.reading() as connection:
        writers = {
            writer
            for table in (statistics, grouped_statistics)
            for writer in (await connection.execute(select(table.c.writer).distinct())).scalars()
        }
    yield
    if not seconds:
        return
    async with store.writing() as connection:
        for table, first, *others in (
            ("operations", "created_at", "updated_at"),
            ("decisions", "created_at"),
            ("deliveries", "created_at", "next_attempt_at", "settled_at"),
            ("attempts", "started_at"),
        ):
            await _subtract(connection, table, seconds, since=mark, columns=[first, *others])
        await _subtract(connection, "model_calls", seconds * NANO, since=mark * NANO, columns=["start_unix_nano"])
        await _move_statistics(connection, seconds, writers)
        for row in (await connection.execute(select(events).where(events.c.time_unix_nano >= mark * NANO))).all():
            its = (events.c.operation_id == row.operation_id) & (events.c.number == row.number)
            wire, time = _earlier(row.wire, seconds), row.time_unix_nano - seconds * NANO
            await connection.execute(update(events).where(its).values(wire=wire, time_unix_nano=time))
        keys = {}
        for row in (await connection.execute(select(executions).where(executions.c.id >= _key_of(mark)))).all():
            keys[row.id] = row.id - _key_of(seconds)
            wire = msgspec.json.decode(_earlier(row.wire, seconds)) | {"id": f"{keys[row.id]:016x}"}
            changed = {"id": keys[row.id], "wire": msgspec.json.encode(wire)}
            await connection.execute(update(executions).where(executions.c.id == row.id).values(changed))
        for old, key in keys.items():
            await connection.execute(update(execution_hooks).where(execution_hooks.c.id == old).values(id=key))


async def _move_statistics(connection: AsyncConnection, seconds: int, others: set[str]) -> None:
    """Move the statistics of new writers back, into whole minutes and hours; the oldest first, so that none collide."""
    new = select(statistics).where(statistics.c.writer.not_in(others)).order_by(statistics.c.start)
    for row in (await connection.execute(new)).all():
        key = [getattr(statistics.c, each.name) == getattr(row, each.name) for each in statistics.primary_key]
        start = (row.start - seconds) // row.seconds * row.seconds
        await connection.execute(update(statistics).where(*key).values(start=start))
    its = grouped_statistics.c
    grouped = select(*grouped_statistics.primary_key).where(its.writer.not_in(others)).order_by(its.start)
    for row in (await connection.execute(grouped)).all():
        key = [its[each.name] == getattr(row, each.name) for each in grouped_statistics.primary_key]
        start = (row.start - seconds) // 3600 * 3600
        await connection.execute(update(grouped_statistics).where(*key).values(start=start))


async def _subtract(connection: AsyncConnection, table: str, by: float, *, since: float, columns: list[str]) -> None:
    changes = ", ".join(f"{column} = {column} - :by" for column in columns)
    where = f"{columns[0]} >= :since"
    await connection.execute(text(f"UPDATE {table} SET {changes} WHERE {where}"), {"by": by, "since": since})


def _earlier(wire: bytes, seconds: int) -> bytes:
    """Move all times in the JSON of an event or an execution."""
    return msgspec.json.encode(_with_times(msgspec.json.decode(wire), seconds))


def _with_times(value: Any, seconds: int) -> Any:
    if isinstance(value, list):
        return [_with_times(each, seconds) for each in value]
    if not isinstance(value, dict):
        return value
    changed = {name: _with_times(each, seconds) for name, each in value.items()}
    for name in changed.keys() & {"timeUnixNano", "time_unix_nano"}:
        changed[name] -= seconds * NANO
    if "createdAt" in changed:
        changed["createdAt"] -= seconds
    return changed


def _key_of(seconds: float) -> int:
    """Return the first key that an execution which ended at a time can have."""
    return int(seconds * 1_000_000) << SPARE_BITS


if __name__ == "__main__":
    logging.disable(logging.ERROR)
    print(asyncio.run(fill(sys.argv[1])))
