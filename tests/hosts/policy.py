"""A policy that decides by the words of a command."""

import asyncio
import os
import time

from msgspec.structs import replace

from hookline import AgentCall, Ask, Continue, Deny, Hooks, SubAgentCall, ToolCall

hooks = Hooks("policy")


@hooks.before(ToolCall, tool="Bash")
def change(call):
    if "change" in call.args["command"]:
        return replace(call, args={**call.args, "command": "echo changed"})
    return None


@hooks.guard(ToolCall, tool="Bash")
async def judge(call):
    command = call.args["command"]
    if "deny" in command:
        return Deny("not on my machine")
    if "stop" in command:
        return Deny("enough", stop=True)
    if "ask" in command:
        return Ask("May it run?")
    if "crash" in command:
        raise RuntimeError("boom")
    if "slow" in command:
        await asyncio.sleep(60)
    if "freeze" in command:
        time.sleep(60)
    if "flood" in command:
        return Deny("x" * 50_000_000)
    if "die" in command:
        os.kill(os.getpid(), 9)
    return None


@hooks.after(ToolCall, tool="Bash")
def hide(call, result):
    if "secret" in result.content:
        return replace(result, content="hidden")
    return None


@hooks.guard(SubAgentCall)
def no_agents(call):
    if "forbidden" in call.instruction:
        return Deny("no such help")
    return None


@hooks.before(AgentCall)
def no_prompts(call):
    if "bad prompt" in call.input[0].content:
        return Deny("ask something else")
    return None


@hooks.after(AgentCall)
def go_on(call, result):
    if "not finished" in result.output:
        return Continue("Finish it.")
    return None
