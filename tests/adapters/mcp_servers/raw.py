"""An MCP server without any library, which behaves as its argument says: at once, and as badly as nobody else would.

A call with the argument `mode` is answered in that mode. It imports no more than it needs, as many tests start it.
"""

from __future__ import annotations

import json
import os
import sys
import time

mode = sys.argv[1] if len(sys.argv) > 1 else "good"
notes = sys.argv[2] if len(sys.argv) > 2 else ""
stdout = sys.stdout.buffer
calls = 0


def send(message: object) -> None:
    raw(json.dumps(message).encode() + b"\n")


def raw(data: bytes) -> None:
    stdout.write(data)
    stdout.flush()


def answer(request: dict, result: object) -> None:
    send({"jsonrpc": "2.0", "id": request["id"], "result": result})


def refuse(request: dict, code: int, message: str) -> None:
    send({"jsonrpc": "2.0", "id": request["id"], "error": {"code": code, "message": message}})


def note(text: str) -> None:
    if notes:
        with open(notes, "a") as file:
            file.write(text + "\n")


def text(content: str, **further: object) -> dict[str, object]:
    return {"content": [{"type": "text", "text": content}], **further}


def tool(name: str, **further: object) -> dict[str, object]:
    return {"name": name, "inputSchema": {"type": "object"}, **further}


def initialize(request: dict) -> None:
    if mode == "garbage":
        raw(b"Welcome!\n{\n\n\xff\xfe\n[1, 2]\n" + b"[" * 100_000 + b"\n")
    if mode == "other version":
        answer(
            request, {"protocolVersion": "1999-01-01", "capabilities": {}, "serverInfo": {"name": "", "version": ""}}
        )
        return
    answer(
        request,
        {
            "protocolVersion": "2025-06-18",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "raw", "version": "1"},
        },
    )


def list_tools(request: dict) -> None:
    global calls
    cursor = (request.get("params") or {}).get("cursor")
    if mode == "no tools":
        answer(request, {"tools": []})
    elif mode == "twice":
        answer(request, {"tools": [tool("a"), tool("b"), tool("a")]})
    elif mode == "nameless":
        answer(request, {"tools": [tool("")]})
    elif mode == "circle":
        answer(request, {"tools": [tool("a")], "nextCursor": "again"})
    elif mode == "pages":
        number = int(cursor or 0)
        further = {"nextCursor": str(number + 1)} if number < 2 else {}
        answer(request, {"tools": [tool(f"page{number}")], **further})
    elif mode == "no list":
        answer(request, {"tools": "none"})
    elif mode == "unwilling":
        refuse(request, -32603, f"no tools for {os.environ.get('RAW_KEY')}")
    elif mode == "never lists":
        pass
    elif mode == "exits when asked for tools":
        print("out of tools", file=sys.stderr, flush=True)
        os._exit(7)
    elif mode == "changes and refuses" and calls == 1:
        refuse(request, -32603, "not now")
        calls += 1
    elif mode.startswith("changes") and calls:
        answer(request, {"tools": [tool("other")]})
    else:
        look = tool("look", annotations={"readOnlyHint": True, "title": "Have a look"}, description="Looks.")
        more = [tool("add", annotations={"destructiveHint": False, "idempotentHint": True, "openWorldHint": False})]
        answer(request, {"tools": [tool("act"), look, *(more if mode == "hints" else [])]})


def call_tool(request: dict) -> None:
    global calls
    calls += 1
    params = request["params"]
    note(f"call {params['name']} {json.dumps(params.get('arguments'))}")
    behaviour = BEHAVIOURS.get((params.get("arguments") or {}).get("mode", mode))
    if behaviour is not None:
        behaviour(request)
    else:
        answer(request, text(f"did {params['name']} {json.dumps(params.get('arguments'))} as {os.getpid()}"))


def flood(request: dict) -> None:
    while True:
        raw(b"not a message\n" * 1000)


def chatter(request: dict) -> None:
    while True:
        send({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x" * 1000}})


def endless_line(request: dict) -> None:
    while True:
        raw(b"x" * 1_000_000)


def leave(request: dict) -> None:
    answer(request, text(f"last words of {os.getpid()}"))
    os._exit(0)


def die(request: dict) -> None:
    print(f"cannot go on with {os.environ.get('RAW_KEY')}", file=sys.stderr, flush=True)
    os._exit(3)


def repeat(request: dict) -> None:
    for _ in range(9):
        print(f"trace of {os.environ['RAW_KEY']}", file=sys.stderr, flush=True)
    os._exit(3)


def shout(request: dict) -> None:
    raw(f"{os.environ['RAW_KEY']} {os.environ['RAW_KEY']}\n".encode())
    os._exit(3)


def notify(request: dict) -> None:
    key = os.environ["RAW_KEY"]
    send({"jsonrpc": "2.0", "method": f"notifications/{key}"})
    send({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": key, "data": key}})
    answer(request, text("told"))


def half(request: dict) -> None:
    raw(b'{"jsonrpc": "2.0", "id": ')
    os._exit(0)


def change(request: dict) -> None:
    send({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
    answer(request, text("changed")) if calls == 1 else refuse(request, -32602, "Unknown tool: act")


BEHAVIOURS = {
    "hangs": lambda request: None,
    "stubborn": lambda request: None,
    "sleeps": lambda request: time.sleep(600),
    "wrong ids": lambda request: [answer({"id": number}, text("x")) for number in (10**9, "x", None)],  # type: ignore[func-returns-value]
    "answers twice": lambda request: [answer(request, text(content)) for content in "ab"],  # type: ignore[func-returns-value]
    "no result": lambda request: answer(request, {"content": 5}),
    "no json-rpc": lambda request: raw(b'{"id": %d, "answer": 42}\n' % request["id"]),
    "bad utf-8": lambda request: raw(b'{"jsonrpc": "2.0", "id": %d, "result": "\xff"}\n' % request["id"]),
    "error": lambda request: refuse(request, -32000, f"not with {os.environ.get('RAW_KEY')}"),
    "tool error": lambda request: answer(request, text(f"not with {os.environ.get('RAW_KEY')}", isError=True)),
    "empty": lambda request: answer(request, {"content": []}),
    "large": lambda request: answer(request, text("ä" * 5_000_000)),
    "environment": lambda request: answer(request, text(json.dumps(dict(os.environ)))),
    "meta": lambda request: answer(request, text(json.dumps(request["params"].get("_meta")))),
    "flood": flood,
    "chatter": chatter,
    "endless line": endless_line,
    "leaves": leave,
    "dies": die,
    "half": half,
    "repeats": repeat,
    "shouts": shout,
    "notifies": notify,
    "quotes": lambda request: answer(request, text(json.dumps(os.environ["RAW_KEY"]), isError=True)),
    "changes": change,
    "changes and refuses": change,
    "exits the second time": die,
}


def main() -> None:
    note(f"start {os.getpid()}")
    if mode == "exits":
        print(f"cannot start with {os.environ.get('RAW_KEY')}", file=sys.stderr, flush=True)
        sys.exit(5)
    if mode == "exits the second time":
        with open(notes) as file:
            if file.read().count("start") > 1:
                sys.exit(6)
    if mode in ("slow", "stubborn start"):
        time.sleep(600)
    if mode == "stubborn":
        import signal

        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if mode == "family":
        import subprocess

        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        note(f"start {child.pid}")
    methods = {"initialize": initialize, "tools/list": list_tools, "tools/call": call_tool}
    for line in sys.stdin:
        request = json.loads(line)
        if request["method"] == "notifications/cancelled":
            note("cancelled")
        if "id" in request:
            methods.get(request["method"], lambda request: refuse(request, -32601, "unknown"))(request)
        if mode == "half deaf" and request["method"] == "tools/call":
            break
    if mode == "half deaf":
        time.sleep(600)
    while mode == "stubborn":
        time.sleep(600)


if __name__ == "__main__":
    main()
