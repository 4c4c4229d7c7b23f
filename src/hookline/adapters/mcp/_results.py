"""Convert the results of MCP tool calls, and the failures of servers, to the text that the model reads."""

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
"""Characters of a resource's URI that are shown: a `data:` URI holds the whole resource."""

LONGEST_FAULT = 4000
"""Characters of a fault's description that are shown: a validator's message may quote a whole result."""


def tool_result(result: CallToolResult, secrets: Secrets) -> ToolResult:
    """Convert the result of a tool call.

    Texts are joined, and every other block is described in one line. Without any text, structured content is added as
    JSON. Secrets of the server are removed from failures, but not from successful results.
    """
    parts = [_block_text(block) for block in result.content]
    if result.structured_content is not None and not any(isinstance(block, TextContent) for block in result.content):
        parts.insert(0, json.dumps(result.structured_content, ensure_ascii=False, separators=(",", ":")))
    content = "\n".join(parts)
    if result.is_error:
        return ToolResult(content=secrets.clean(content) or "The tool failed without a message.", success=False)
    return ToolResult(content=content)


def fault(server: str, kind: str, problem: str) -> ToolResult:
    """Build the failed result of a call that the server did not answer properly.

    Args:
        server: The server's name.
        kind: `"start"`, `"timeout"`, `"ended"`, `"refused"` or `"invalid"`.
        problem: What happened, as the continuation of a sentence that starts with the server's name; without secrets.
    """
    content = f"MCP server {server!r} {problem}"
    if len(content) > LONGEST_FAULT:
        content = f"{content[:LONGEST_FAULT]}…"
    return ToolResult(content=content, success=False, metadata={"mcp_fault": kind})


def _block_text(block: ContentBlock) -> str:
    if isinstance(block, TextContent):
        return block.text
    if isinstance(block, ImageContent | AudioContent):
        return f"[{block.type}: {block.mime_type}, {_decoded_size(block.data)} bytes]"
    if isinstance(block, ResourceLink):
        kind = f", {block.mime_type}" if block.mime_type else ""
        return f"[resource {block.name!r}: {_shortened_uri(block.uri)}{kind}]"
    assert isinstance(block, EmbeddedResource)
    resource = block.resource
    if isinstance(resource, TextResourceContents):
        return f"[resource: {_shortened_uri(resource.uri)}]\n{resource.text}"
    kind = f", {resource.mime_type}" if resource.mime_type else ""
    return f"[resource: {_shortened_uri(resource.uri)}{kind}, {_decoded_size(resource.blob)} bytes]"


def _decoded_size(base64: str) -> int:
    """Return the number of bytes that a base64 text decodes to."""
    return len(base64) * 3 // 4 - base64[-2:].count("=")


def _shortened_uri(uri: object) -> str:
    text = str(uri)
    return text if len(text) <= LONGEST_ADDRESS else f"{text[:LONGEST_ADDRESS]}…"
