"""The runs that the viewer is to show: a task of AgentDojo, and an agent to which everything happens that can."""

from __future__ import annotations

from hookline import (
    Agent,
    Approve,
    BeforeToolCall,
    Deny,
    Hooks,
    ModelResponse,
    ScriptedModel,
    ToolCall,
    ToolRequest,
    Usage,
    exec_agent,
    resume_agent,
    tool,
)
from hookline.evals.suites.agentdojo import load_suite
from hookline.runtime import InMemoryStore

TASK = "user_task_0"
CONVERSATION = "hookline-soak"
USAGE = Usage(input_tokens=120, output_tokens=30)

EXPECTED = """\
invoke_agent agentdojo-banking [AGENT]
  agent_step [CHAIN]
    chat scripted [LLM]
    execute_tool read_file [TOOL]
  agent_step [CHAIN]
    chat scripted [LLM]
    execute_tool send_money [TOOL]
  agent_step [CHAIN]
    chat scripted [LLM]
invoke_agent clerk [AGENT] waiting_for_human
  agent_step [CHAIN]
    chat scripted [LLM]
    execute_tool look_up [TOOL] mocked by known answers
    execute_tool shred [TOOL] denied by nothing is shredded
    call_agent reader [CHAIN]
      invoke_agent reader [AGENT]
        agent_step [CHAIN]
          chat scripted [LLM]
          execute_tool count_pages [TOOL] ERROR ValueError
        agent_step [CHAIN]
          chat scripted [LLM]
  agent_step [CHAIN]
    chat scripted [LLM]
    human_intervention [CHAIN] waiting_for_human
invoke_agent clerk [AGENT] resumed
  agent_step [CHAIN]
    human_intervention [CHAIN] approve
    execute_tool pay [TOOL]
  agent_step [CHAIN]
    chat scripted [LLM]
"""
"""What must be seen, written by hand."""


@tool(in_thread=False)
def look_up(name: str) -> str:
    """Look somebody up."""
    raise AssertionError(f"a hook answers for {name}")


@tool(in_thread=False)
def shred(document: str) -> str:
    """Destroy a document."""
    raise AssertionError(f"a hook refuses to shred {document}")


@tool(in_thread=False)
def count_pages(document: str) -> int:
    """Count a document's pages."""
    raise ValueError(f"{document} cannot be opened")


@tool(in_thread=False, needs_approval=True)
def pay(amount: float) -> str:
    """Pay an amount."""
    return f"paid {amount:.2f}"


def clerk() -> Agent:
    """An agent that has one call answered and one refused, asks another agent, and waits for a person."""
    reader = Agent(
        id="reader",
        model=ScriptedModel([asks(calling("count_pages", document="lease.pdf")), says("I cannot open it.")]),
        tools=[count_pages],
    )
    turns = [
        asks(
            calling("look_up", name="the landlord"),
            calling("shred", document="lease.pdf"),
            calling("reader", "agent", instruction="How long is lease.pdf?"),
        ),
        asks(calling("pay", amount=950)),
        says("The rent is paid."),
    ]
    return Agent(id="clerk", model=ScriptedModel(turns), tools=[look_up, shred, pay], sub_agents=[reader])


def interfering() -> Hooks:
    """Hooks that answer one tool and refuse another."""
    hooks = Hooks("interfering")

    @hooks.on(BeforeToolCall, tool="*/look_up", id="known answers")
    def answer(event: BeforeToolCall) -> None:
        event.mock("The landlord is Ms Lee.")

    @hooks.guard(ToolCall, tool="*/shred", id="nothing is shredded")
    def refuse(call: ToolCall) -> Deny:
        return Deny("documents are kept for ten years")

    return hooks


async def run_task(tracing: Hooks) -> None:
    """Pay a bill, as AgentDojo has it."""
    outcome = await load_suite("banking").run_task(TASK, hooks=[tracing])
    assert (outcome.result.reason, outcome.utility) == ("done", True), outcome


async def run_clerk(tracing: Hooks) -> None:
    """Pay the rent, with a pause for a person in between."""
    agent, store = clerk(), InMemoryStore()
    hooks = [interfering(), tracing]
    paused = await exec_agent(agent, "Pay the rent.", hooks=hooks, store=store)
    assert paused.reason == "waiting_for_human", paused
    decisions = [Approve(pending.tool_call_id) for pending in paused.pending]
    result = await resume_agent(agent, paused.operation_id, decisions, hooks=hooks, store=store)
    assert (result.reason, result.output) == ("done", "The rent is paid."), result


def calling(name: str, toolset: str = "local", /, **args: object) -> ToolRequest:
    return ToolRequest(toolset=toolset, tool_name=name, tool_call_id=f"call_{name}", args=args)


def asks(*calls: ToolRequest) -> ModelResponse:
    return ModelResponse(tool_calls=list(calls), usage=USAGE, finish_reason="tool_calls")


def says(content: str) -> ModelResponse:
    return ModelResponse(content=content, usage=USAGE)
