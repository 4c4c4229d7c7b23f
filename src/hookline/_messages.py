"""What calls and results are made of: messages, tool calls of a model, tools as a model sees them, usage."""

from typing import Any, Literal

import msgspec

from hookline._frozen import NO_DICT, NO_LIST, freeze_dict

__all__ = ["Message", "ToolCalling", "ToolSpec", "Usage"]


class ToolCalling(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A tool call as the model asked for it.

    Attributes:
        identifier: Where the tool comes from: `"local"` for a Python function, the server's name for MCP.
        api_name: The tool's name there.
        args: The arguments as a JSON object, or the model's raw text where it was not parsed.
        tool_call_id: The model's id of this call, unique within the answer.
    """

    identifier: str = "local"
    api_name: str
    args: dict[str, Any] | str = {}
    tool_call_id: str

    def __post_init__(self) -> None:
        if isinstance(self.args, dict):
            freeze_dict(self, "args", self.args)


class Usage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What model calls used.

    Attributes:
        input_tokens: Tokens read.
        output_tokens: Tokens written.
        cost_usd: Price in US dollars.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cost_usd=self.cost_usd + other.cost_usd,
        )


class Message(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One message of a conversation.

    Attributes:
        role: Who speaks.
        content: The text.
        tool_calls: What an assistant message asks for.
        tool_call_id: Which call a tool message answers.
        details: What the model's adapter wants back with an assistant message, such as signatures of its reasoning.
    """

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    tool_calls: list[ToolCalling] = NO_LIST
    tool_call_id: str | None = None
    details: dict[str, Any] = NO_DICT


class ToolSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A tool as a model sees it.

    Attributes:
        identifier: Where the tool comes from: `"local"` for a Python function.
        name: Its name there.
        description: What it does, for the model.
        schema: JSON Schema of its arguments.
    """

    identifier: str = "local"
    name: str
    description: str = ""
    schema: dict[str, Any] = {}

    def __post_init__(self) -> None:
        freeze_dict(self, "schema", self.schema)
