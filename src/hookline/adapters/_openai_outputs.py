"""What a run of the OpenAI Agents SDK gives, as the text that hooks see, and back."""

from __future__ import annotations

import contextlib
import json
from typing import Any

from agents import Agent, AgentOutputSchema, AgentOutputSchemaBase, ModelBehaviorError
from pydantic_core import to_json

from hookline.adapters._openai_items import told
from hookline.errors import HookUsageError

__all__ = ["retyped", "said_last"]


def said_last(result: Any) -> str:
    """What a run of the SDK gave, as text: JSON where its agent has an output type."""
    output = result.final_output
    if output is None or isinstance(output, str):
        return output or ""
    if result.last_agent.output_type is not None:
        with contextlib.suppress(ValueError):  # what is no data
            return to_json(output, fallback=str).decode()
    return told(output)


def retyped(agent: Agent[Any], text: str) -> Any:
    """What a hook made of an agent's output, in the output type of the agent.

    Raises:
        HookUsageError: If the text does not fit that type.
    """
    schema = agent.output_type
    if schema is None or schema is str:
        return text
    if not isinstance(schema, AgentOutputSchemaBase):
        schema = AgentOutputSchema(schema)
    if schema.is_plain_text():
        return text
    for written in _writings(schema, text):
        with contextlib.suppress(ModelBehaviorError):
            return schema.validate_json(written)
    raise HookUsageError(
        f"A hook gave an output that does not fit agent {agent.name!r}. Its output type is {schema.name()}; "
        f"return JSON of that type from hooks of its AgentCall."
    )


def _writings(schema: AgentOutputSchemaBase, text: str) -> list[str]:
    """The text as the model would have written it; the SDK wraps types that are no JSON objects."""
    if not getattr(schema, "_is_wrapped", False):
        return [text]
    found = [text, json.dumps({"response": text})]
    with contextlib.suppress(ValueError):
        found.insert(0, json.dumps({"response": json.loads(text)}))
    return found
