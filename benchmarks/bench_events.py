"""Building, reading, encoding and decoding an event, against a dict, a frozen dataclass and `json`."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

from benchmarks.harness import Row, interleave, statement
from hookline import BeforeStep, OnToolCallError, decode, encode

STEP = "operation_id='op', agent_id='banker', user_id='ada', tenant_id='acme', step_index=3"
TOOL = (
    "operation_id='op', agent_id='banker', user_id='ada', tenant_id='acme', toolset='local', tool_name='search', "
    "args=args, call_index=1, step_index=3, tool_call_id='call_1', error='not found', error_type='KeyError'"
)


@dataclass(frozen=True, kw_only=True)
class StepDataclass:
    """What `BeforeStep` holds."""

    operation_id: str
    agent_id: str
    user_id: str
    tenant_id: str
    step_index: int
    time_unix_nano: int


@dataclass(frozen=True, kw_only=True)
class ToolDataclass:
    """What `OnToolCallError` holds."""

    operation_id: str
    agent_id: str
    user_id: str
    tenant_id: str
    toolset: str
    tool_name: str
    args: dict[str, Any]
    call_index: int
    step_index: int
    tool_call_id: str
    error: str
    error_type: str
    time_unix_nano: int


async def bench(rounds: int) -> list[Row]:
    rows = []
    args = {"query": "hooks", "limit": 10}
    now = time.time_ns
    for name, code, event_class, as_dataclass in (
        ("BeforeStep", STEP, BeforeStep, StepDataclass),
        ("OnToolCallError", TOOL, OnToolCallError, ToolDataclass),
    ):
        event = eval(f"event_class({code})", {"event_class": event_class, "args": args})
        wire = encode(event)
        plain = json.loads(wire)
        keys = f"[{name}]"
        pairs = ", ".join(f"'{pair.split('=')[0]}': {pair.split('=')[1]}" for pair in code.split(", "))
        built = {"args": args, "now": now}
        alike = eval(f"as_dataclass({code}, time_unix_nano=0)", {"as_dataclass": as_dataclass, "args": args})
        samples = await interleave(
            {
                f"dict literal {keys}": statement(f"{{{pairs}, 'time_unix_nano': now()}}", **built),
                f"frozen dataclass {keys}": statement(
                    f"make({code}, time_unix_nano=now())", make=as_dataclass, **built
                ),
                f"event {keys}": statement(f"make({code})", make=event_class, **built),
                f"field of a frozen dataclass {keys}": statement("alike.operation_id", alike=alike),
                f"field of an event {keys}": statement("event.operation_id", event=event),
                f"json.dumps of the dict {keys}": statement("dumps(plain).encode()", dumps=json.dumps, plain=plain),
                f"encode {keys}": statement("encode(event)", encode=encode, event=event),
                f"json.loads to a dict {keys}": statement("loads(wire)", loads=json.loads, wire=wire),
                f"decode {keys}": statement("decode(wire)", decode=decode, wire=wire),
            },
            rounds,
        )
        rows += [
            samples.row(f"dict literal {keys}"),
            samples.row(f"event {keys}", f"dict literal {keys}"),
            samples.row(f"frozen dataclass {keys}", f"event {keys}"),
            samples.row(f"field of a frozen dataclass {keys}"),
            samples.row(f"field of an event {keys}", f"field of a frozen dataclass {keys}", at_most=2.0),
            samples.row(f"encode {keys}"),
            samples.row(f"json.dumps of the dict {keys}", f"encode {keys}"),
            samples.row(f"decode {keys}"),
            samples.row(f"json.loads to a dict {keys}", f"decode {keys}"),
        ]
    return rows
