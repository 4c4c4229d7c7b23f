"""What went wrong in AGENT-33's hook system, and does not here."""

from __future__ import annotations

import ast
import contextlib
import contextvars
import math
import pathlib
import re
import sys
from typing import Any

import anyio
import msgspec
import pytest
from asgi.scenes import call as request
from asgi.scenes import hello, hooked
from interceptors.calls import (
    Tool,
    after,
    around,
    before,
    guard,
    keep_busy,
    recorded,
    replace,
    run,
    statuses,
    tool_call,
    with_args,
)
from runtime.interception import POINTS, Probe, World, full, pay, paying, session_of
from runtime.scenes import Recorder, agent_of, call, calls, says, tool_texts

import hookline
from hookline import (
    AfterStep,
    AfterToolCall,
    AgentSession,
    BeforeStep,
    Deny,
    Hook,
    HookDispatcher,
    Hooks,
    ModelCall,
    RequestCall,
    ToolCall,
    exec_agent,
    tool,
)
from hookline.builtin import AuditLog, CallMetrics
from hookline.errors import HookDefinitionError
from hookline.events import encode
from hookline.interceptors import Chain, Interceptor
from hookline.registry import DefinitionError, ExecutionLog, Registry
from hookline.store import SqlStore

pytestmark = pytest.mark.anyio


async def passes(call: Any, call_next: Any) -> Any:
    return await call_next(call)


async def hangs(call: Any) -> None:
    await anyio.sleep_forever()


# The runner.


async def test_the_timeout_of_a_hook_does_not_include_what_it_surrounds() -> None:
    """AGENT-33 F1: the timeout wrapped `call_next`, so that outer limits included inner time."""
    outcome = await run([around(passes, timeout=0.05)], None, Tool(seconds=0.08))

    assert outcome.result.content == "result"
    assert statuses(outcome) == [("around", "ok")]


@pytest.mark.parametrize("mistake", ["raises", "forgets its return"])
async def test_a_mistake_after_call_next_does_not_run_the_tool_twice(mistake: str) -> None:
    """AGENT-33 F2: a hook that failed open after `call_next`, or forgot its `return`, ran downstream twice."""

    async def mistaken(call: ToolCall, call_next: Any) -> None:
        await call_next(call)
        if mistake == "raises":
            raise OSError("no disk")

    tool = Tool()
    outcome = await run([around(mistaken, on_error="open")] * 3, None, tool)

    assert (len(tool.calls), outcome.result.content) == (1, "result")


async def test_one_hung_hook_among_fast_ones_is_not_started_again_nor_blamed_on_them() -> None:
    """AGENT-33 F3: n fast outer hooks and a hung one with the limit T took (n+1)·T and started it n+1 times."""
    starts: list[str] = []

    async def hung(call: ToolCall, call_next: Any) -> None:
        starts.append("hung")
        await anyio.sleep_forever()

    fast = [around(passes, id=f"fast {n}", timeout=0.05, on_error="open") for n in range(5)]
    outcome = await run([*fast, around(hung, id="hung", timeout=0.05, on_error="open")])

    assert starts == ["hung"]
    assert statuses(outcome) == [*((f"fast {n}", "ok") for n in range(5)), ("hung", "timeout")]


async def test_twenty_slow_hooks_do_not_take_twenty_times_as_long() -> None:
    """AGENT-33 F4: a chain had no budget: 20 hooks of 500 ms each were possible."""
    tool = Tool()
    slow = [before(hangs, id=f"slow {n}", on_error="open") for n in range(20)]

    outcome = await run(slow, None, tool, budget=0.02)

    assert statuses(outcome) == [("slow 0", "timeout")]
    assert len(tool.calls) == 1


async def test_a_late_failure_that_closes_does_not_hide_that_the_tool_ran() -> None:
    """AGENT-33 F5: a late failure that fails closed aborted, although downstream had run."""
    paid: list[Any] = []
    hooks, recorder = Hooks("h"), Recorder()

    @hooks.around(ToolCall, id="late")
    async def fails_late(call: ToolCall, call_next: Any) -> None:
        await call_next(call)
        raise OSError("no disk")

    result = await exec_agent(paying(paid, calls(pay(5)), says("fine")), "go", hooks=[hooks, recorder.hooks])

    (told,) = tool_texts(result)
    (event,) = recorder.of(AfterToolCall)
    assert told.startswith("The tool ran, but hook 'late'")
    assert (paid, event.success, event.content, result.reason) == ([5], True, "paid 5", "done")


@pytest.mark.parametrize("on_error", ["open", "closed"])
async def test_an_around_that_forgets_call_next_does_not_skip_the_guards(on_error: Any) -> None:
    """AGENT-33 F6: returning without `call_next` and without an abort silently skipped guards."""
    judged: list[str] = []
    tool = Tool()

    async def forgets(call: ToolCall, call_next: Any) -> None:
        return None

    outcome = await run([around(forgets, on_error=on_error), guard(lambda c: judged.append(c.tool_name))], None, tool)

    assert outcome.denied is not None or (judged == ["search"] and len(tool.calls) == 1)
    assert ((outcome.denied is None), statuses(outcome)[0]) == (on_error == "open", ("around", "error"))


async def test_a_denial_is_not_cleared_by_an_outer_hook() -> None:
    """AGENT-33 F7: an abort was a flag that any outer hook could clear."""

    async def lifts(call: ToolCall, call_next: Any) -> Any:
        with contextlib.suppress(Exception):
            await call_next(call)
        return Tool("permitted").answer

    tool = Tool()
    outcome = await run([around(lifts, on_error="open"), guard(lambda c: Deny("no"), id="no")], None, tool)

    assert outcome.denied is not None
    assert (outcome.denied.hook_id, outcome.denied.reason, outcome.result, tool.calls) == ("no", "no", None, [])


async def test_calling_call_next_again_does_not_run_the_tool_again() -> None:
    """AGENT-33 F8: `call_next` could be called again."""

    async def twice(call: ToolCall, call_next: Any) -> Any:
        first = await call_next(call)
        again = await call_next(with_args(call, q="other"))
        assert again is first
        return again

    tool = Tool()
    outcome = await run([around(twice), around(twice, id="inner")], None, tool)

    assert [each.args for each in tool.calls] == [{"q": "x"}]
    assert statuses(outcome) == [("around", "ok"), ("inner", "ok")]


async def test_nested_hooks_do_not_count_the_same_time_twice() -> None:
    """AGENT-33 F9: durations were nested, so that their sum counted time twice."""

    async def slow(call: ToolCall, call_next: Any) -> Any:
        await anyio.sleep(0.01)
        return await call_next(call)

    outcome = await run([around(slow)] * 4, None, Tool(seconds=0.01))

    assert len(outcome.executions) == 4
    assert sum(record.duration_ms for record in outcome.executions) < outcome.duration_ms


async def test_the_text_of_a_timeout_is_not_empty() -> None:
    """AGENT-33 F10: the error of a timeout was `str(TimeoutError())`, which is empty."""
    outcome = await run([before(hangs, id="slow one", timeout=0.01)])

    assert outcome.denied is not None
    assert outcome.denied.reason
    assert outcome.executions[0].error
    assert outcome.refusal is not None
    for word in ("slow one", "ToolCall", "0.01 s"):
        assert word in str(outcome.refusal.__cause__)


@pytest.mark.parametrize("on_error", ["open", "closed"])
async def test_a_plain_hook_that_blocks_beyond_its_limit_is_not_recorded_as_a_success(on_error: Any) -> None:
    """AGENT-33 F11: a blocking sync hook could not be interrupted, and counted as a success after four times its limit."""

    def blocks(call: ToolCall) -> ToolCall:
        keep_busy(0.02)
        return with_args(call, q="too late")

    tool = Tool()
    outcome = await run([before(blocks, timeout=0.005, on_error=on_error)], None, tool)

    assert statuses(outcome) == [("before", "timeout")]
    assert [each.args for each in tool.calls] == ([{"q": "x"}] if on_error == "open" else [])


async def test_a_hook_that_an_outer_one_cancelled_does_not_go_unrecorded() -> None:
    """AGENT-33 F12: a hook that an outer timeout cancelled left no record."""

    async def impatient(call: ToolCall, call_next: Any) -> Any:
        with anyio.move_on_after(0.01):
            await call_next(call)
        return Tool("too slow").answer

    outcome = await run([around(impatient, id="outer"), before(hangs, id="inner")])

    assert statuses(outcome) == [("outer", "ok"), ("inner", "dropped")]


async def test_a_context_variable_that_a_hook_sets_is_not_lost_and_no_task_is_made_for_it() -> None:
    """AGENT-33 F13: `wait_for` made a task for each hook, and context variables set in it were lost."""
    variable = contextvars.ContextVar("variable", default="unset")
    tasks = [anyio.get_current_task().id]

    async def sets(call: ToolCall) -> None:
        await anyio.sleep(0)
        variable.set("set")
        tasks.append(anyio.get_current_task().id)

    async def tool(call: ToolCall) -> Any:
        tasks.append(anyio.get_current_task().id)
        return Tool(variable.get()).answer

    outcome = await run([before(sets, timeout=1.0)], None, tool)

    assert (outcome.result.content, len(tasks), len(set(tasks))) == ("set", 3, 1)


async def test_half_made_edits_of_a_failed_hook_do_not_stay() -> None:
    """AGENT-33 F14: inputs were changed in place, so that edits of a hook that failed stayed half made."""

    def breaks(call: ToolCall) -> None:
        with contextlib.suppress(TypeError):
            call.args["q"] = "half made"
        raise OSError("no disk")

    async def breaks_later(call: ToolCall, call_next: Any) -> Any:
        call = with_args(call, q="half made")
        raise OSError("no disk")

    tool = Tool()
    await run([before(breaks, on_error="open"), around(breaks_later, on_error="open")], None, tool)

    assert [each.args for each in tool.calls] == [{"q": "x"}]


# Settings, and hooks that run at the same time.


async def test_the_timeout_and_the_failure_policy_of_a_hook_are_not_dead_settings() -> None:
    """AGENT-33 F15: a hook's own `timeout_ms` and `fail_mode` were never read; everything failed open."""
    optional = before(hangs, id="optional", timeout=0.01, on_error="open")
    needed = before(hangs, id="needed", timeout=0.01, on_error="closed")
    tool = Tool()

    outcome = await run([optional, needed], None, tool, hook_timeout=math.inf)

    assert statuses(outcome) == [("optional", "timeout"), ("needed", "timeout")]
    assert outcome.denied is not None
    assert (outcome.denied.hook_id, tool.calls) == ("needed", [])


async def test_concurrent_hooks_share_nothing_decide_nothing_and_are_not_recorded_as_unknown() -> None:
    """AGENT-33 F16: concurrent hooks shared a mutable context, the last decided; a cancelled one was "unknown"."""
    one, two, three = Hooks("one"), Hooks("two"), Hooks("three")
    one.before(ToolCall, wait=False, id="edits")(lambda call: call.args.update(amount=9))
    two.before(ToolCall, wait=False, id="denies")(lambda call: Deny("no"))
    three.before(ToolCall, wait=False, id="hangs")(hangs)
    paid: list[Any] = []

    with recorded() as records:
        agent = paying(paid, calls(pay(5)), says())
        result = await exec_agent(agent, "go", hooks=[one, two, three], drain_timeout=0.05)

    assert (paid, tool_texts(result)) == ([5], ["paid 5"])
    assert {(r.hook_id, r.status) for r in records} == {("edits", "error"), ("denies", "error"), ("hangs", "dropped")}


# Registry and HTTP interface: what of it there is here.


async def test_a_registration_is_not_found_by_its_name_so_a_rename_orphans_nothing() -> None:
    """AGENT-33 F17: hooks were matched by name and tenant; others of that name were met, and a rename orphaned."""
    heard: list[str] = []
    first, second = Hooks("same"), Hooks("same")
    first.on(BeforeStep, id="same")(lambda event: heard.append("first"))
    second.on(BeforeStep, id="same")(lambda event: heard.append("second"))

    async with HookDispatcher() as dispatcher:
        registration = dispatcher.register("op", [first])
        dispatcher.register("op", [second])
        first.id = "renamed"
        registration.remove()
        dispatcher.dispatch(BeforeStep(operation_id="op", step_index=0))

    assert heard == ["second"]


async def test_a_changed_definition_is_not_left_unchecked_and_not_without_effect() -> None:
    """AGENT-33 F18: an updated definition never reached the runtime and skipped validation (a timeout of minus 3)."""
    record = before(lambda call: None, id="judge")
    with pytest.raises(HookDefinitionError, match="timeout"):
        Chain([replace(record, timeout=-3)])
    with pytest.raises(AttributeError):
        record.timeout = -3  # type: ignore[misc]

    outcome = await run([replace(record, handler=lambda call: Deny("changed"))])

    assert outcome.denied is not None
    assert outcome.denied.reason == "changed"


async def test_a_request_is_not_led_through_the_hooks_of_another_tenant() -> None:
    """AGENT-33 F19: the routes never passed the tenant on, so that every tenant met what belongs to others."""
    seen: list[Any] = []
    hooks = Hooks("acme", tenant_id="acme")
    hooks.before(RequestCall)(lambda call: seen.append(call.tenant_id))
    app = hooked(hello(), hooks, tenant=lambda scope: dict(scope["headers"])[b"x-tenant"].decode())

    for tenant in ("acme", "globex", ""):
        await request(app, headers=[("x-tenant", tenant)])

    assert seen == ["acme"]


async def test_a_handler_is_not_imported_from_text(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """AGENT-33 F20: `handler_ref` was imported and called from request input before any check."""
    (tmp_path / "evil_of_f20.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    text: Any = "evil_of_f20:handler"
    ways = [
        lambda: Hooks("h").on(BeforeStep)(text),
        lambda: Hooks("h").before(ToolCall)(text),
        lambda: Hooks("h").on_phase(None, None)(text),
        lambda: Chain([Interceptor(id="i", call=ToolCall, kind="before", handler=text)]),
        lambda: agent_of(says(), hooks=[Hook(id="o", type=BeforeStep, handler=text)]),
        lambda: agent_of(says(), hooks=[text]),
    ]
    for way in ways:
        with pytest.raises(HookDefinitionError):
            way()

    assert "evil_of_f20" not in sys.modules


async def test_what_a_tenants_session_registers_is_not_a_hook_of_the_system() -> None:
    """AGENT-33 F21: any tenant could register a system hook."""
    seen: list[str] = []
    async with AgentSession(agent_of(says()), tenant_id="acme") as session:
        session.hooks.on(AfterStep)(lambda event: seen.append(event.tenant_id))
        session.hooks.before(ModelCall)(lambda call: seen.append(call.tenant_id))
        await session.run("go")

    await exec_agent(agent_of(says()), "go", hooks=[session.hooks], tenant_id="globex")
    await exec_agent(agent_of(says()), "go", hooks=[session.hooks])

    assert seen == ["acme", "acme"]


async def test_what_one_tenant_uses_up_is_not_taken_from_another() -> None:
    """AGENT-33 F22: one limit was shared by all tenants, built-ins included."""
    heard: list[str] = []
    release = anyio.Event()
    hooks = Hooks("h")

    @hooks.on(BeforeStep)
    async def slow(event: BeforeStep) -> None:
        await release.wait()
        heard.append(event.tenant_id)

    async with HookDispatcher(max_queued=2) as dispatcher:
        for tenant in ("greedy", "modest"):
            dispatcher.register(tenant, [hooks])
        for tenant in (*["greedy"] * 50, "modest", "modest"):
            dispatcher.dispatch(BeforeStep(operation_id=tenant, tenant_id=tenant, step_index=0))
        release.set()
        assert (await dispatcher.unregister("modest")).dropped == 0

    assert heard.count("modest") == 2


async def test_removing_a_hook_of_one_event_does_not_take_those_of_the_same_name_from_others() -> None:
    """AGENT-33 F23: deregistering for one event deleted definitions of that name for others."""
    heard: list[str] = []
    observers = [
        Hook(id="same", type=kind, handler=lambda e: heard.append(e.hook_type)) for kind in (BeforeStep, AfterStep)
    ]
    recorder = Recorder()

    async with HookDispatcher() as dispatcher:
        registration, _ = (dispatcher.register("op", [observer]) for observer in observers)
        registration.remove()
        assert not dispatcher.has_hooks("op", BeforeStep)
        hooks = [*observers, recorder.hooks]
        await exec_agent(agent_of(says()), "go", hooks=hooks, dispatcher=dispatcher, operation_id="other")

        assert dispatcher.has_hooks("op", AfterStep)
    assert heard == ["beforeStep", "afterStep"]


async def test_a_second_hook_of_the_same_id_does_not_replace_the_first() -> None:
    """AGENT-33 F24: there was no check for duplicates. Here ids need not be unique, and nothing is found by them."""
    ran: list[int] = []
    same = [before(lambda call, n=n: ran.append(n), id="same") for n in range(3)]

    outcome = await run([*same, same[0]])

    assert ran == [0, 1, 2, 0]
    assert statuses(outcome) == [("same", "ok")] * 4


# Integration.


async def test_no_hook_is_declared_and_never_fired() -> None:
    """AGENT-33 F25: hooks of tools and workflow steps were wired nowhere; some paths ran pre and never post."""
    world, probe = World(), Probe()
    world.parallel = 1

    async with session_of(world.agent, hooks=[probe.hooks]) as session:
        result = await session.run("go")

    assert result.reason == "done"
    for point in POINTS:
        times = probe.counts(point)["in"]
        assert times >= 1
        assert probe.counts(point) == full(times), point


async def test_what_a_hook_makes_of_a_tools_result_is_not_ignored() -> None:
    """AGENT-33 F26: the code forgot to use what the post hook of a tool returned."""
    hooks = Hooks("h")
    hooks.after(ToolCall)(lambda call, result: replace(result, content=f"{result.content}, thank you"))

    result = await exec_agent(paying([], calls(pay(5)), says()), "go", hooks=[hooks])

    assert tool_texts(result) == ["paid 5, thank you"]


async def test_hooks_after_a_tool_are_not_skipped_when_it_fails() -> None:
    """AGENT-33 F27: post was skipped on a failure."""
    seen: list[Any] = []
    hooks = Hooks("h")

    @tool
    async def breaks() -> str:
        raise OSError("no disk")

    @hooks.after(ToolCall)
    def look(call: ToolCall, result: Any) -> None:
        seen.append((call.tool_name, result.success, result.error_type))

    await exec_agent(agent_of(calls(call("breaks")), says(), tools=[breaks]), "go", hooks=[hooks])

    assert seen == [("breaks", False, "OSError")]


async def test_before_and_after_do_not_get_different_metadata() -> None:
    """AGENT-33 F28: pre and post got different metadata dicts."""
    shared: list[Any] = []

    async def surrounds(call: ToolCall, call_next: Any) -> Any:
        shared.append(call.metadata)
        return await call_next(replace(call, metadata={"since": 1}))

    note = lambda call, result=None: shared.append(call.metadata)  # noqa: E731
    await run([around(surrounds), guard(note), after(note)])

    assert shared == [{"since": 1}] * 3
    assert len({id(each) for each in shared}) == 1


async def test_denied_tool_calls_are_not_missing_from_the_audit_log() -> None:
    """AGENT-33 F29: denied tool calls skipped the audit."""
    audit, hooks = AuditLog(), Hooks("h", priority=0)
    hooks.guard(ToolCall, tool="*/pay", id="the judge")(lambda call: Deny("no"))

    await exec_agent(paying([], calls(pay(5), call("look", "l1")), says()), "go", hooks=[hooks, audit])

    tools = [(r.target, r.outcome, r.denied_by) for r in audit.records if r.call == "ToolCall"]
    assert sorted(tools) == [("local/look", "ok", None), ("local/pay", "denied", "the judge")]


async def test_metrics_do_not_miss_the_hooks_before_them_and_the_audit_log_does_not_grow_for_ever() -> None:
    """AGENT-33 F30: a metrics hook measured only the hooks after it; the audit list was unbounded."""
    metrics, audit = CallMetrics(), AuditLog(max_entries=3)
    slow = before(lambda call: keep_busy(0.01), priority=0, id="slow")

    chain = Chain([metrics, slow, audit])
    spent = 0.0
    for _ in range(5):
        outcome = await chain.run(tool_call(), Tool())
        spent += sum(record.duration_ms for record in outcome.executions if record.hook_id == "slow")

    assert metrics.snapshot()["ToolCall"]["total_ms"] >= spent
    assert len(audit.records) == 3


# Scripts: there are none here, but most of their mistakes have another form.


def test_no_hook_is_a_process_that_could_outlive_its_timeout() -> None:
    """AGENT-33 F31: a script was not killed at its timeout, and its side effect happened."""
    # Only the scripts of the registry are processes, and tests/registry/test_scripts.py looks for what they leave.
    starters = {"subprocess", "multiprocessing", "pty", "popen", "system", "fork", "spawnv", "execv", "posix_spawn"}
    starters |= {"run_process", "open_process", "to_process", "to_interpreter", "create_subprocess_exec"}
    # To parse every file takes longer than to look which of them could have such a name.
    imported_or_called = re.compile(rf"(?:import|from|[.,(])\s*(?:{'|'.join(starters)})\b")

    package = pathlib.Path(hookline.__file__).parent
    for path in package.rglob("*.py"):
        parts = path.relative_to(package).parts
        programs = (
            ("adapters", "mcp"),
            ("registry", "_scripts.py"),
            ("hosts", "_codex_trust.py"),
            ("hosts", "_command"),
            ("evals", "running"),
            ("evals", "engine_contract.py"),
        )
        # Evaluations are spread over processes and ask git for the commit; servers of tools and Codex are programs. The
        # contract of engines kills processes of its own.
        # None of these is a hook.
        if parts[0] == "cli" or parts[:2] in programs:
            continue
        text = path.read_text()
        if not imported_or_called.search(text):
            continue
        nodes = list(ast.walk(ast.parse(text)))
        names = {name.name for node in nodes if isinstance(node, ast.Import | ast.ImportFrom) for name in node.names}
        names |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
        names |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
        # There it is the provider's name, or what a key of the system sees.
        names -= {"system"} if parts[0] in ("adapters", "server") else set()
        assert not names & starters, path


async def test_a_hook_is_not_kept_from_seeing_the_tool_and_its_arguments() -> None:
    """AGENT-33 F32: scripts never got the tool's name nor its arguments."""
    seen: list[Any] = []

    def look(call: ToolCall, *result: Any) -> None:
        seen.append((call.toolset, call.tool_name, dict(call.args), call.tool_call_id))

    hooks = Hooks("h")
    hooks.before(ToolCall)(look)
    hooks.guard(ToolCall)(look)
    hooks.after(ToolCall)(look)
    await exec_agent(paying([], calls(pay(5)), says()), "go", hooks=[hooks])

    assert seen == [("local", "pay", {"amount": 5}, "p1")] * 3


@pytest.mark.parametrize("on_error", ["open", "closed"])
async def test_an_error_of_the_tool_does_not_run_a_hook_twice(on_error: Any) -> None:
    """AGENT-33 F33: an error downstream ran the script twice."""
    ran: list[str] = []

    async def surrounds(call: ToolCall, call_next: Any) -> Any:
        ran.append("around")
        return await call_next(call)

    tool = Tool(error=OSError("no disk"))
    hooks = [around(surrounds, on_error=on_error), before(lambda call: ran.append("before"), on_error=on_error)]
    with pytest.raises(OSError, match="no disk"):
        await run(hooks, None, tool)

    assert (ran, len(tool.calls)) == (["around", "before"], 1)


async def test_a_before_and_an_after_of_one_name_do_not_collide() -> None:
    """AGENT-33 F34: discovery was keyed by name only, so that pre and post of one name collided."""
    ran: list[str] = []
    hooks = Hooks("h")
    hooks.before(ToolCall, id="same")(lambda call: ran.append("before"))
    hooks.after(ToolCall, id="same")(lambda call, result: ran.append("after"))
    hooks.before(RequestCall, id="same")(lambda call: ran.append("request"))

    await run([hooks])

    assert ran == ["before", "after"]


async def test_the_environment_is_not_leaked_and_no_general_limit_beats_a_hooks_own(monkeypatch: Any) -> None:
    """AGENT-33 F35: scripts got the whole environment; the runner's 500 ms beat the script's own 5 s."""
    monkeypatch.setenv("SECRET_OF_F35", "hunter2")
    shown: list[bytes] = []
    hooks, recorder = Hooks("h"), Recorder()

    @hooks.before(ToolCall, timeout=5.0)
    async def patient(call: ToolCall) -> None:
        await anyio.sleep(0.03)
        shown.append(msgspec.json.encode(call))

    given = [hooks, recorder.hooks]
    async with HookDispatcher(hook_timeout=0.01) as dispatcher:
        result = await exec_agent(paying([], calls(pay(5)), says()), "go", hooks=given, dispatcher=dispatcher)

    everything = b"".join([*shown, *map(encode, recorder.events)])
    assert (len(shown), tool_texts(result)) == (1, ["paid 5"])
    assert not [word for word in (b"F35", b"hunter2") if word in everything]


@pytest.mark.parametrize("kind", ["before", "guard", "after", "around", "on"])
def test_a_handler_whose_signature_does_not_fit_is_not_found_out_when_it_is_called(kind: str) -> None:
    """AGENT-33 plugins: they registered hooks with a signature that does not exist."""
    subject: Any = BeforeStep if kind == "on" else ToolCall

    with pytest.raises(HookDefinitionError, match="is called with"):
        getattr(Hooks("h"), kind)(subject)(lambda event_type, name, handler, config: None)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_dry_run_is_not_without_type_time_limit_or_report_and_leaves_no_trace() -> None:
    """AGENT-33 dry run: the sample had no type, nothing ended it, a denial was not told, and it was logged as a run."""
    async with SqlStore("sqlite://") as store, Registry(store, modules=["tests.registry.factories"]) as registry:
        async with ExecutionLog(store, observers=True) as log:
            told = {"name": "n", "point": "ToolCall.guard", "handler": "deny"}
            with pytest.raises(DefinitionError, match="got `int`"):
                await registry.dry_run(told, {"apiName": 3})
            denied = await registry.dry_run(told, {"apiName": "pay"})
            late = await registry.dry_run(told | {"handler": "tests.registry.factories:late"}, {}, timeout=0.05)
            rows = (await log.logs(None)).items

        assert (denied.outcome, late.outcome, rows) == ("denied", "failed", [])
        assert "0.05 s" in late.error
        assert (await registry.list()).items == []
