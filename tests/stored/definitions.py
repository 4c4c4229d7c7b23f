"""Definitions of hooks as the HTTP API takes them, and what they are tried out on."""

from __future__ import annotations

from typing import Any

BODIES: list[dict[str, Any]] = [
    {
        "id": "no-shell",
        "name": "No shell",
        "point": "ToolCall.guard",
        "description": "Nobody needs a shell.",
        "priority": 10,
        "handler": "deny-tools",
        "timeout": 2.5,
        "tenantId": "acme",
        "config": {"tools": ["local/bash"]},
        "onError": "open",
        "inherit": False,
        "tags": ["safety", "ü"],
    },
    {
        "id": "transfers",
        "name": "Refuse transfers",
        "point": "ToolCall.before",
        "handler": "deny",
        "tool": "bank/transfer*",
        "tenantId": "acme",
        "config": {"reason": "not today", "stop": True},
    },
    {
        "id": "ledger",
        "name": "Ledger",
        "point": "afterToolCall",
        "tool": "bank/pay",
        "webhook": {
            "url": "https://ledger.example/in",
            "eventFields": ["identifier", "apiName", "args"],
            "body": {"team": "risk"},
        },
    },
    {
        "id": "gate",
        "name": "Gate",
        "point": "beforeToolCall",
        "tenantId": "acme",
        "webhook": {"url": "https://gate.example/in", "control": True, "onError": "open", "timeout": 3.0},
    },
    {"id": "disabled", "name": "Disabled", "point": "ToolCall.guard", "handler": "deny", "tenantId": "acme"},
    {
        "id": "mail",
        "name": "No mail addresses",
        "point": "ToolCall.before",
        "handler": "redact",
        "tenantId": "acme",
        "config": {"patterns": ["email"], "args": True},
    },
]

SAMPLES: list[tuple[str, dict[str, Any]]] = [
    ("no-shell", {"identifier": "local", "apiName": "bash", "args": {"command": "ls"}}),
    ("no-shell", {"identifier": "local", "api_name": "search", "args": {}}),
    ("no-shell", {"identifier": "mcp", "apiName": "bash"}),
    ("mail", {"apiName": "send", "args": {"text": "mail ann@example.com"}}),
    ("ledger", {"identifier": "bank", "apiName": "pay", "args": {"amount": 1}, "timeUnixNano": 1}),
]
"""Ids of definitions with calls and events, in the two spellings that are accepted."""
