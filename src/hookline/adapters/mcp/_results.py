"""What a server answered, as the model will read it."""

from __future__ import annotations

import json

from mcp_types import (
    AudioContent,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

from hookline.adapters.mcp._settings import Secrets
from hookline.calls import ToolResult

__all__ = ["fault", "tool_result"]

LONGEST_ADDRESS = 200
"""Characters of a resource's address that are shown: one of the `data:` kind holds all of the resource."""

LONGEST_FAULT = 4000
"""Characters of a fault's description: a validator may quote a whole result in it."""


def tool_result(result: CallToolResult, secrets: Secrets) -> ToolResult:
    """The result of a call that the server has answered.

    Texts are joined; whatever is no text is described in one line. Where there is no text, structured content is JSON.
    A failure is rid of the secrets that the server was given; what a tool gives when it succeeds is left as it is.
    """
    parts = [_told(block) for block in result.content]
    if result.structured_content is not None and not any(isinstance(block, TextContent) for block in result.content):
        parts.insert(0, json.dumps(result.structured_content, ensure_ascii=False, separators=(",", ":")))
    content = "\n".join(parts)
    if result.is_error:
        return ToolResult(content=secrets.clean(content) or "The tool failed and did not say why.", success=False)
    return ToolResult(content=content)


def fault(server: str, kind: str, problem: str) -> ToolResult:
    """The result of a call that the server has not answered as it should.

    Args:
        server: The server's name.
        kind: `"start"`, `"timeout"`, `"ended"`, `"refused"` or `"invalid"`.
        problem: What happened, going on from the server's name; without secrets.
    """
    told = f"MCP server {server!r} {problem}"
    if len(told) > LONGEST_FAULT:
        told = f"{told[:LONGEST_FAULT]}…"
    return ToolResult(content=told, success=False, metadata={"mcp_fault": kind})


def _told(block: ContentBlock) -> str:
    if isinstance(block, TextContent):
        return block.text
    if isinstance(block, ImageContent | AudioContent):
        return f"[{block.type}: {block.mime_type}, {_size(block.data)} bytes]"
    if isinstance(block, ResourceLink):
        kind = f", {block.mime_type}" if block.mime_type else ""
        return f"[resource {block.name!r}: {_address(block.uri)}{kind}]"
    assert isinstance(block, EmbeddedResource)
    resource = block.resource
    if isinstance(resource, TextResourceContents):
        return f"[resource: {_address(resource.uri)}]\n{resource.text}"
    kind = f", {resource.mime_type}" if resource.mime_type else ""
    return f"[resource: {_address(resource.uri)}{kind}, {_size(resource.blob)} bytes]"


def _size(base64: str) -> int:
    """How many bytes a base64 text stands for."""
    return len(base64) * 3 // 4 - base64[-2:].count("=")


def _address(uri: object) -> str:
    text = str(uri)
    return text if len(text) <= LONGEST_ADDRESS else f"{text[:LONGEST_ADDRESS]}…"
