"""What each coding agent must do under one policy: the cases, and how it is seen that a tool did not run."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.hosts.installed import POLICY
from tests.hosts.real.models import ModelServer, Turn
from tests.hosts.real.programs import PROGRAMS, Place, Ran

TIMEOUT = "6"
"""Seconds that hooks have in these runs."""


class Failed(Exception):
    """The coding agent did something else."""


class NotPossible(Exception):
    """The coding agent gives hooks no way to do it."""


class Scene:
    """One run of one coding agent.

    Attributes:
        place: The program, its home and its project.
        model: The scripted model.
        plans: The plans of the model: `main`, and `child` for a sub-agent.
    """

    def __init__(self, host: str, programs: Path) -> None:
        self.plans: dict[str, Any] = {"main": [], "child": []}
        self.folder = Path(tempfile.mkdtemp(prefix="hl-"))
        self.model = ModelServer(self.plans)
        self.place: Place = PROGRAMS[host](self.folder, programs, self.model.url)
        self.place.prepare()
        (self.place.project / "policy.py").write_text(POLICY)
        self.user = ["--user"] if host in ("codex", "copilot") else []

    def install(self, *more: str) -> None:
        """Install the policy, and trust it where that is needed."""
        words = ["host", "install", self.place.name, "--hooks", "policy.py:hooks", "--store", "sqlite:///hookline.db"]
        ran = self.place.hookline(*words, "--env", "PYTHONPATH", "--timeout", TIMEOUT, "--yes", *self.user, *more)
        if ran.code:
            raise Failed(f"install: {ran.err.strip()}")

    def shell(self, words: str, marker: str = "ran") -> Turn:
        """Return a call of the shell that leaves a file behind if it runs."""
        path = self.place.project / f"marker-{marker}"
        return self.place.call(f"echo {words} > {shlex.quote(str(path))}")

    def has_run(self, marker: str = "ran") -> bool:
        return (self.place.project / f"marker-{marker}").exists()

    def operations(self) -> list[dict[str, Any]]:
        """Return the operations of the store, as the command line lists them."""
        listed = self.place.hookline("operations", "list", "--json", "--store", "sqlite:///hookline.db").out
        return [json.loads(line) for line in listed.splitlines()]

    def run(self, prompt: str = "PLAN:main go") -> Ran:
        with self.model:
            ran = self.place.run(prompt)
        if not self.model.requests and "bad prompt" not in prompt:
            raise Failed(f"it made no model call: {(ran.err or ran.out).strip()[-300:]}")
        return ran

    def end(self) -> None:
        """End the resident process, also one that is frozen."""
        for log in self.folder.glob("hookline-*/*.log"):
            for pid in re.findall(r"process (\d+)\.", log.read_text()):
                try:
                    words = Path(f"/proc/{pid}/cmdline").read_bytes()
                except OSError:
                    continue
                if b"hookline.hosts" in words and str(self.folder).encode() in words:
                    os.kill(int(pid), signal.SIGKILL)

    def expect(self, what: str, holds: bool) -> None:
        if not holds:
            raise Failed(what)


CONTEXT = """
from hookline import AgentCall, Hooks, ToolCall

hooks = Hooks("policy")
hooks.before(AgentCall)(lambda call: call.add_context("The build is frozen."))
hooks.guard(ToolCall)(lambda call: call.add_context("Mind the freeze."))
"""
PAYMENTS = """
from msgspec.structs import replace

from hookline import Deny, Hooks, ToolCall

hooks = Hooks("policy")


@hooks.before(ToolCall, tool="pay")
def cap(call):
    return replace(call, args={**call.args, "amount": 1}) if call.args["to"] == "carl" else None


@hooks.guard(ToolCall, tool="shop/pay")
def judge(call):
    return Deny("not to bob") if call.args["to"] == "bob" else None


@hooks.after(ToolCall, tool="pay")
def hide(call, result):
    return replace(result, content="hidden")
"""
AGENTS = """
from msgspec.structs import replace

from hookline import AgentCall, Deny, Hooks

hooks = Hooks("policy")


@hooks.before(AgentCall)
def judge(call):
    if "forbidden" in call.input[0].content:
        return Deny("no such help")
    if "child" in call.input[0].content:
        call.add_context("The build is frozen.")
    return None


@hooks.after(AgentCall)
def hide(call, result):
    return replace(result, output="hidden") if "number" in result.output else None
"""
TRACED = """
from pathlib import Path

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

from hookline.otel import TracingHooks

spans = Path(__file__).with_name("spans.jsonl").open("a", buffering=1)
provider = TracerProvider()
provider.add_span_processor(
    SimpleSpanProcessor(ConsoleSpanExporter(out=spans, formatter=lambda span: span.to_json(None) + "\\n"))
)
hooks = [TracingHooks(tracer_provider=provider)]
"""
Case = Callable[[Scene], None]
CASES: dict[str, Case] = {}


def case(name: str) -> Callable[[Case], Case]:
    def add(function: Case) -> Case:
        CASES[name] = function
        return function

    return add


@case("allow")
def allow(scene: Scene) -> None:
    scene.install()
    scene.plans["main"] = [scene.shell("fine")]
    scene.run()
    scene.expect("the tool did not run", scene.has_run())


@case("deny")
def deny(scene: Scene) -> None:
    scene.install()
    scene.plans["main"] = [scene.shell("deny")]
    scene.run()
    scene.expect("the tool ran", not scene.has_run())
    scene.expect("the model was not told why", "not on my machine" in scene.model.told)


@case("rewrite")
def rewrite(scene: Scene) -> None:
    scene.install()
    scene.plans["main"] = [scene.shell("change")]
    scene.run()
    scene.expect("the tool ran unchanged", not scene.has_run())
    scene.expect("the changed command did not run", "changed" in scene.model.told.replace("has changed", ""))


@case("ask, and nobody answers")
def ask(scene: Scene) -> None:
    scene.install()
    scene.plans["main"] = [scene.shell("ask")]
    scene.run()
    scene.expect("the tool ran", not scene.has_run())
    scene.expect("the model was not told why", "May it run?" in scene.model.told)


def _with_person(scene: Scene, word: str, action: str) -> None:
    """Write a policy that has a person do something when it judges a command with a word."""
    program = str(Path(__file__).with_name("approve.py"))
    words = f"[sys.executable, {program!r}, 'sqlite:///{scene.place.project}/hookline.db', {action}]"
    judged = '    command = call.args["command"]\n'
    acts = f"{judged}    if {word!r} in command:\n        subprocess.Popen({words})\n"
    policy = POLICY.replace(judged, acts).replace("import os\n", "import os\nimport subprocess\nimport sys\n")
    (scene.place.project / "policy.py").write_text(policy)


@case("ask, and a person approves")
def approve(scene: Scene) -> None:
    scene.install("--ask-timeout", "30")
    _with_person(scene, "ask", "'approve'")
    scene.plans["main"] = [scene.shell("ask")]
    scene.run()
    scene.expect("the tool did not run", scene.has_run())


@case("approved after a kill")
def approve_after_kill(scene: Scene) -> None:
    scene.install("--ask-timeout", "30")
    _with_person(scene, "ask", "'approve', str(os.getpid())")
    scene.plans["main"] = [scene.shell("ask")]
    scene.run()
    scene.expect("the tool did not run", scene.has_run())


@case("interrupted by a person")
def interrupt(scene: Scene) -> None:
    scene.install()
    _with_person(scene, "interrupt", "'interrupt'")
    first = scene.place.call("sleep 4; echo interrupt")
    scene.plans["main"] = [first, scene.shell("fine", "second")]
    scene.run()
    scene.expect("the turn went on with another tool", not scene.has_run("second"))
    scene.expect("the operation did not end so", "interrupted" in {each["status"] for each in scene.operations()})


@case("tokens")
def tokens(scene: Scene) -> None:
    scene.install()
    scene.plans["main"] = [scene.shell("fine"), *scene.place.agent("PLAN:child help")]
    scene.plans["child"] = [scene.shell("fine", "child")]
    scene.run()
    found = scene.operations()
    names = [(each["agentId"], each["status"], each["llmCalls"]) for each in found]
    scene.expect(f"the operations are {names}", len(found) == 2)
    for each in found:
        what = f"{each['agentId']} has {each['llmCalls']} calls and {each['totalTokens']} tokens"
        scene.expect(what, each["totalTokens"] == 15 * each["llmCalls"])
        # Copilot CLI tells the calls of a sub-agent after it has ended, so that they count for its caller.
        scene.expect(what, each["llmCalls"] > 1 or scene.place.name == "copilot")
    calls = sum(each["llmCalls"] for each in found)
    scene.expect(f"{calls} calls were counted, {len(scene.model.requests)} made", calls <= len(scene.model.requests))


@case("trace with a sub-agent")
def trace(scene: Scene) -> None:
    scene.install()
    (scene.place.project / "policy.py").write_text(TRACED)
    scene.plans["main"] = [scene.shell("fine"), *scene.place.agent("PLAN:child help")]
    scene.plans["child"] = [scene.shell("fine", "child")]
    scene.run()
    lines = (scene.place.project / "spans.jsonl").read_text().splitlines()
    spans = {each["context"]["span_id"]: each for each in map(json.loads, lines)}
    agents = [each for each in spans.values() if each["name"].startswith("invoke_agent")]
    scene.expect(f"the agents are {[each['name'] for each in agents]}", len(agents) == 2)
    scene.expect("there are several traces", len({each["context"]["trace_id"] for each in spans.values()}) == 1)
    cut = [each["name"] for each in spans.values() if "hookline.span.truncated" in each["attributes"]]
    scene.expect(f"the spans {cut} were cut short", not cut)
    for agent in agents:
        operation = agent["attributes"]["hookline.operation.id"]
        names = [each["name"] for each in spans.values() if each["attributes"]["hookline.operation.id"] == operation]
        scene.expect(f"{agent['name']} has {names}", any(name.startswith("execute_tool") for name in names))
    for each in spans.values():
        above = spans.get(each["parent_id"])
        outlived = above is not None and above["end_time"] < each["end_time"]
        scene.expect(f"{each['name']} outlives the span above it", not outlived)


@case("result withheld")
def withhold(scene: Scene) -> None:
    scene.install()
    scene.plans["main"] = [scene.place.call("printf %s%s sec ret")]
    scene.run()
    scene.expect("the model read it", "secret" not in _results(scene).replace("secrets", ""))
    scene.expect("the model was told nothing", "hidden" in scene.model.told)


@case("context")
def context(scene: Scene) -> None:
    scene.install()
    (scene.place.project / "policy.py").write_text(CONTEXT)
    scene.plans["main"] = [scene.shell("fine")]
    scene.run()
    scene.expect("the tool did not run", scene.has_run())
    scene.expect("the model was not told with the prompt", "The build is frozen." in str(scene.model.requests))
    scene.expect("the model was not told with the result", "Mind the freeze." in str(scene.model.requests))


@case("stop")
def stop(scene: Scene) -> None:
    scene.install()
    scene.plans["main"] = [scene.shell("stop", "first"), scene.shell("fine", "second")]
    scene.run()
    scene.expect("the tool ran", not scene.has_run("first"))
    scene.expect("the turn went on with another tool", not scene.has_run("second"))


@case("prompt refused")
def prompt(scene: Scene) -> None:
    scene.install()
    scene.plans["main"] = [scene.shell("fine")]
    scene.run("PLAN:main a bad prompt")
    scene.expect("the model was asked", not any("PLAN" in str(each) for each in scene.model.requests))


@case("goes on, three times at most")
def go_on(scene: Scene) -> None:
    scene.install()
    policy = scene.place.project / "policy.py"
    if scene.place.name == "copilot":  # it does not tell its hooks what the agent has said
        policy.write_text(POLICY.replace('"not finished" in result.output', "not result.output"))
    scene.plans["main"] = lambda body: "not finished"
    scene.run()
    scene.expect("it did not go on", "Finish it." in scene.model.told)
    asked = sum("PLAN:main" in str(each) for each in scene.model.requests)
    scene.expect(f"the model was asked {asked} times", asked == 4)


@case("tools of an MCP server")
def mcp_tools(scene: Scene) -> None:
    scene.install()
    (scene.place.project / "policy.py").write_text(PAYMENTS)
    scene.plans["main"] = [scene.place.pay("bob", 5), scene.place.pay("carl", 6)]
    scene.run()
    calls = (scene.place.project / "calls").read_text().splitlines()
    scene.expect(f"the calls were {calls}", [json.loads(each) for each in calls] == [{"to": "carl", "amount": 1}])
    scene.expect("the model was not told why", "not to bob" in scene.model.told)
    scene.expect("the model read the result", "secret" not in _results(scene).replace("secrets", ""))
    scene.expect("the model was not told what stands for the result", "hidden" in _results(scene))


@case("deny in a sub-agent")
def deny_in_sub_agent(scene: Scene) -> None:
    scene.install()
    scene.plans["main"] = scene.place.agent("PLAN:child help")
    scene.plans["child"] = [scene.shell("deny")]
    scene.run()
    scene.expect("the tool ran", not scene.has_run())
    scene.expect("the model was not told why", "not on my machine" in scene.model.told)


@case("allow in a sub-agent")
def allow_in_sub_agent(scene: Scene) -> None:
    scene.install()
    scene.plans["main"] = scene.place.agent("PLAN:child help")
    scene.plans["child"] = [scene.shell("fine")]
    scene.run()
    scene.expect("the tool did not run", scene.has_run())
    scene.expect("the sub-agent is no operation of its own", len(scene.operations()) == 2)


@case("stop in a sub-agent")
def stop_in_sub_agent(scene: Scene) -> None:
    scene.install()
    scene.plans["main"] = [*scene.place.agent("PLAN:child help"), scene.shell("fine", "main")]
    scene.plans["child"] = [scene.shell("stop", "first"), scene.shell("fine", "second")]
    scene.run()
    ran = [name for name in ("first", "second", "main") if scene.has_run(name)]
    scene.expect(f"the tools that ran are {ran}", ran == ["main"])
    statuses = sorted(each["status"] for each in scene.operations())
    scene.expect(f"the operations ended as {statuses}", statuses == ["done", "interrupted"])


@case("sub-agent reads context")
def context_of_sub_agent(scene: Scene) -> None:
    scene.install()
    (scene.place.project / "policy.py").write_text(AGENTS)
    scene.plans["main"] = scene.place.agent("PLAN:child help")
    scene.plans["child"] = [scene.shell("fine")]
    scene.run()
    scene.expect("the tool did not run", scene.has_run())
    reads = [str(each) for each in scene.model.requests if "The build is frozen." in str(each)]
    scene.expect("the sub-agent was not told", any("PLAN:child" in each and "PLAN:main" not in each for each in reads))


@case("answer of a sub-agent withheld")
def withhold_answer(scene: Scene) -> None:
    scene.install()
    (scene.place.project / "policy.py").write_text(AGENTS)
    scene.plans["main"] = scene.place.agent("PLAN:child help")
    scene.plans["child"] = [scene.place.last_turn("The number is 4711.")]
    scene.run()
    scene.expect("the sub-agent did not answer", any("PLAN:child" in str(each) for each in scene.model.requests))
    if "<subagent_notification>" in _results(scene):
        raise NotPossible("it gives the caller the answer in a message of its own, too")
    scene.expect("the caller read the answer", "4711" not in _results(scene))
    scene.expect("the caller read nothing in its place", "hidden" in _results(scene))


@case("sub-agent denied by a hook of AgentCall")
def deny_agent(scene: Scene) -> None:
    scene.install()
    (scene.place.project / "policy.py").write_text(AGENTS)
    scene.plans["main"] = scene.place.agent("PLAN:child forbidden")[:1]
    scene.plans["child"] = [scene.shell("fine")]
    scene.run()
    scene.expect("the sub-agent ran", not scene.has_run())
    scene.expect("the model was not told why", "no such help" in scene.model.told)


@case("sub-agent refused")
def refuse_sub_agent(scene: Scene) -> None:
    scene.install()
    scene.plans["main"] = scene.place.agent("PLAN:child forbidden")[:1]
    scene.plans["child"] = [scene.shell("fine")]
    scene.run()
    scene.expect("the sub-agent ran", not scene.has_run())
    scene.expect("the model was not told why", "no such help" in scene.model.told)


def _broken(name: str, words: str) -> None:
    @case(name)
    def broken(scene: Scene) -> None:
        scene.install()
        scene.plans["main"] = [scene.shell(words)]
        scene.run()
        scene.expect("the tool RAN", not scene.has_run())


_broken("hook crashes", "crash")
_broken("hook is slow", "slow")
_broken("hook blocks the resident process", "freeze")
_broken("hook floods", "flood")
_broken("resident process is killed", "die")


@case("policy is broken")
def broken_policy(scene: Scene) -> None:
    scene.install()
    (scene.place.project / "policy.py").write_text("hooks = (\n")
    scene.plans["main"] = [scene.shell("fine")]
    scene.run()
    scene.expect("the tool RAN", not scene.has_run())


@case("installed command is killed")
def killed_command(scene: Scene) -> None:
    killer = scene.folder / "killer"
    killer.write_text('#!/bin/sh\ncase "$4" in judge) kill -9 $$;; esac\n')
    killer.chmod(0o755)
    scene.install()
    code = (
        "import sys, msgspec; from pathlib import Path; import hookline.hosts as h; "
        "made = h.list_installations()[0]; "
        "h.install_hook(msgspec.structs.replace(made, python=sys.argv[1])); "
        "made.host == 'codex' and h.trust_codex_hooks(Path(made.folder), str(made.path))"
    )
    ran = scene.place._run([sys.executable, "-c", code, str(killer)])
    scene.expect(f"install: {ran.err}", ran.code == 0)
    scene.plans["main"] = [scene.shell("fine")]
    scene.run()
    scene.expect("the tool RAN", not scene.has_run())


@case("taken out again")
def uninstall(scene: Scene) -> None:
    scene.install()
    scene.place.hookline("host", "uninstall", scene.place.name, *scene.user)
    scene.plans["main"] = [scene.shell("deny")]
    scene.run()
    scene.expect("the tool did not run", scene.has_run())


def _results(scene: Scene) -> str:
    """Return what the model was sent after its first answer, without the instructions of the program."""
    last = scene.model.requests[-1]
    return str(next(last[name] for name in ("messages", "input", "contents") if name in last)[1:])
