"""A policy about whole agents, sub-agents included, which decides by the words of their prompts and answers."""

from msgspec.structs import replace

from hookline import AgentCall, AgentResult, Continue, Deny, Hooks, Message, Respond

hooks = Hooks("agents", inherit=True)


@hooks.before(AgentCall, id="before")
def judge_prompt(call):
    prompt = call.input[0].content
    if "deny" in prompt:
        return Deny("no such work")
    if "answer" in prompt:
        return Respond(AgentResult(output="I know that already"))
    if "change" in prompt:
        return replace(call, input=[Message(role="user", content="another task")])
    if "context" in prompt:
        call.add_context("The build is frozen.")
    return None


@hooks.after(AgentCall, id="after")
def judge_answer(call, result):
    if "go on" in result.output:
        return Continue("Finish it.")
    if "secret" in result.output:
        return Deny("withheld")
    if "rude" in result.output:
        return replace(result, output="kind words")
    return None
