"""An agent without tools of its own, which calls the tool of the `shop` that the user names."""

from hookline import Agent, ModelCall, ModelResponse, ScriptedModel, ToolRequest

ARGUMENTS = {"hang": {"name": "hang"}, "echo": {"value": "echo"}}


def answer(call: ModelCall) -> ModelResponse:
    last = call.messages[-1]
    if last.role == "tool":
        return ModelResponse(content=f"It said {last.content}")
    calling = ToolRequest(toolset="shop", tool_name=last.content, args=ARGUMENTS[last.content], tool_call_id="call")
    return ModelResponse(tool_calls=[calling])


shopper = Agent(id="shopper", model=ScriptedModel(answer))
