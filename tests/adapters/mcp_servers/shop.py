"""An MCP server of the installed package, over stdio, or over HTTP on the port that is its argument."""

from __future__ import annotations

import sys
from typing import Any

import anyio
from mcp.server import MCPServer
from mcp.server.mcpserver import Image
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult, EmbeddedResource, ResourceLink, TextContent, TextResourceContents, ToolAnnotations

server = MCPServer("shop")
cancelled: list[str] = []


@server.tool(annotations=ToolAnnotations(readOnlyHint=True))
def echo(value: Any) -> str:
    """Say the same again."""
    return f"{value!r}"


@server.tool(annotations=ToolAnnotations(destructiveHint=False, title="Order it"))
async def order(item: str, amount: int = 1) -> str:
    """Order something."""
    return f"ordered {amount} {item}"


@server.tool()
def remove(item: str) -> str:
    """Remove something for good."""
    return f"removed {item}"


@server.tool()
async def stock() -> CallToolResult:
    """What there is, structured only."""
    return CallToolResult(content=[], structured_content={"apples": 2**60, "pears": [1, 2]})


@server.tool()
async def picture() -> CallToolResult:
    """Everything that is no text."""
    image = Image(data=b"\x89PNG1234", format="png").to_image_content()
    link = ResourceLink(type="resource_link", uri="file:///tmp/a.txt", name="a", mime_type="text/plain")
    inner = EmbeddedResource(type="resource", resource=TextResourceContents(uri="memo://1", text="remember"))
    return CallToolResult(content=[TextContent(type="text", text="see"), image, link, inner])


@server.tool()
def fail(why: str) -> str:
    """Fail."""
    raise ToolError(why)


@server.tool()
async def hang(name: str) -> str:
    """Wait for ever, and remember having been cancelled."""
    try:
        await anyio.sleep_forever()
    except anyio.get_cancelled_exc_class():
        cancelled.append(name)
        raise
    return ""


@server.tool()
async def were_cancelled() -> str:
    """The names of the calls of `hang` that were cancelled."""
    return " ".join(cancelled)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", port=int(sys.argv[1]))
    else:
        server.run("stdio")
