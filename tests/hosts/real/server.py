"""An MCP server with one tool, which writes down each call in a file: `server.py FILE`. It needs no library."""

from __future__ import annotations

import json
import sys
from typing import Any

TOOL = {
    "name": "pay",
    "description": "Pay somebody.",
    "inputSchema": {
        "type": "object",
        "properties": {"to": {"type": "string"}, "amount": {"type": "integer"}},
        "required": ["to", "amount"],
    },
}


def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    """Return the result of a request."""
    if method == "initialize":
        version = params["protocolVersion"]
        return {
            "protocolVersion": version,
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "shop", "version": "1"},
        }
    if method == "tools/list":
        return {"tools": [TOOL]}
    if method == "tools/call":
        args = params["arguments"]
        with open(sys.argv[1], "a") as calls:
            calls.write(f"{json.dumps(args)}\n")
        return {"content": [{"type": "text", "text": f"paid {args['amount']} to {args['to']}, a secret"}]}
    return {}


for line in sys.stdin:
    request = json.loads(line)
    if "id" in request:
        result = answer(request["method"], request.get("params") or {})
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}), flush=True)
