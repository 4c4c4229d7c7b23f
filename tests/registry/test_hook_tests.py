"""Tests in files of definitions say what hooks decide: in order, with new hooks, and without running anything."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline import Agent, ModelResponse, ScriptedModel, Tool, ToolRequest, exec_agent, tool
from hookline.registry import DefinitionFileError, HookFile, HookTestResult, Registry, load_hook_file
from hookline.registry._files import parse_hook_file
from hookline.registry._hook_tests import read_hook_tests
from hookline.signals import chain_ran, hook_executed
from hookline.store import SqlStore
from tests.tables import for_each

from .scenes import FACTORIES

pytestmark = pytest.mark.anyio

HOOKS = """\
[[hooks]]
id = "shell"
name = "No shell"
point = "ToolCall.guard"
handler = "deny-tools"
config = { tools = ["bash"] }

[[hooks]]
name = "Ask before paying"
point = "ToolCall.guard"
handler = "require-approval"
config = { tools = ["pay"], prompt = "Pay it?" }
priority = 60

[[hooks]]
name = "Few searches"
point = "ToolCall.guard"
handler = "limit-calls"
config = { n = 2, tool = "search" }

[[hooks]]
name = "Hide cards"
point = "ToolCall.before"
handler = "redact"
config = { patterns = ["card"], args = true }
mode = "shadow"

[[hooks]]
name = "Fraud check"
point = "beforeToolCall"
tool = "*/refund"
webhook = { url = "https://fraud.example/check", control = true }

[[hooks]]
name = "Tell billing"
point = "onComplete"
webhook = { url = "https://billing.example/hooks" }
"""


@pytest.fixture
async def registry(tmp_path: Path) -> AsyncIterator[Registry]:
    (tmp_path / "guide.py").write_text("""print('{"decision": "guide", "reason": "be kind"}')""")
    (tmp_path / "broken.py").write_text("raise SystemExit(3)")
    (tmp_path / "context.py").write_text(
        """print('{"decision": "allow", "additionalContext": "Prices are in EUR."}')"""
    )
    async with Registry(modules=[FACTORIES], scripts=tmp_path) as registry:
        yield registry


def parse(text: str, hooks: str = HOOKS) -> HookFile:
    return parse_hook_file("hooks.toml", f"{hooks}\n{text}".encode(), suffix=".toml")


async def run_one(registry: Registry, text: str, hooks: str = HOOKS) -> HookTestResult:
    """Run the only test of a file."""
    (result,) = await registry.test_file(parse(text, hooks))
    return result


PASSING = {
    "denied": """\
call = { toolset = "ops", tool_name = "bash" }
expect = { verdict = "denied", by = "shell", reason = "denied by the rule", stop = false }""",
    "asked": """\
call = { apiName = "pay", args = { amount = 5 } }
expect = { verdict = "asked", by = "Ask before paying", reason = "Pay it?" }""",
    "allowed": 'call = { tool_name = "look" }\nexpect = "allowed"',
    "rewritten-although-shadow": """\
call = { tool_name = "mail", args = { to = "4111 1111 1111 1111" } }
expect = { verdict = "rewritten", by = "Hide cards", args = { to = "[redacted]" }, call = { toolName = "mail" } }""",
    "result-rewritten": """\
call = { tool_name = "mail" }
result = "paid by 4111 1111 1111 1111"
expect = { verdict = "rewritten", by = "Hide cards", result = "paid by [redacted]" }""",
    "webhook-asks": """\
call = { tool_name = "refund", args = { amount = 7 } }
webhook_answers."Fraud check" = { decision = "ask", reason = "Refund 7?" }
expect = { verdict = "asked", by = "Fraud check", reason = "Refund 7?" }""",
    "webhook-answers": """\
call = { tool_name = "refund" }
webhookAnswers."Fraud check" = { decision = "answer", result = { content = "refunded nothing" } }
expect = { verdict = "mocked", by = "Fraud check", result = { content = "refunded nothing", success = true } }""",
    "webhook-rewrites": """\
call = { tool_name = "refund", args = { to = "ann" } }
webhook_answers."Fraud check" = { args = { to = "Ann" }, additionalContext = "Ann was checked." }
expect = { verdict = "rewritten", by = "Fraud check", args = { to = "Ann" }, context = "checked" }""",
    "webhook-answers-nonsense": """\
call = { tool_name = "refund" }
webhook_answers."Fraud check" = { decision = "perhaps" }
expect = { verdict = "failed", by = "Fraud check" }""",
    "one-hook-alone": 'hook = "Few searches"\ncall = { tool_name = "bash" }\nexpect = "allowed"',
    "calls-in-order": """\
calls = [
  { call = { tool_name = "search" }, expect = "allowed" },
  { call = { tool_name = "search" }, expect = "allowed" },
  { call = { tool_name = "search" }, expect = { verdict = "denied", by = "Few searches" } },
  { call = { tool_name = "search", operation_id = "op_other" }, expect = "allowed" },
]""",
}


@for_each("test", PASSING.values(), ids=PASSING)
async def test_an_expectation_that_is_met_passes(registry: Registry, test: str) -> None:
    result = await run_one(registry, f'[[tests]]\nname = "t"\n{test}')

    assert (result.problems, result.passed) == ([], True)


FAILING = {
    "verdict": ('expect = "allowed"', "expected allowed; got denied by 'No shell': local/bash is denied"),
    "hook": (
        'expect = { verdict = "denied", by = "Few searches" }',
        "expected denied by 'Few searches'; got denied by",
    ),
    "reason": ('expect = { verdict = "denied", reason = "pink" }', "expected 'pink' in the reason"),
    "stop": ('expect = { verdict = "denied", stop = true }', "expected that the denial ends the run"),
    "context": ('expect = { verdict = "denied", context = "EUR" }', "expected 'EUR' in the context; got ''"),
}


@for_each("expect, problem", FAILING.values(), ids=FAILING)
async def test_an_expectation_that_is_not_met_says_what_differs(registry: Registry, expect: str, problem: str) -> None:
    result = await run_one(registry, f'[[tests]]\nname = "t"\ncall = {{ tool_name = "bash" }}\n{expect}')

    assert (result.passed, len(result.problems)) == (False, 1)
    assert problem in result.problems[0]


@pytest.mark.parametrize(
    ("expect", "problem"),
    [
        ('args = { to = "x" }', 'expected the arguments {"to":"x"}; got {"to":"[redacted]"}'),
        ('call = { toolset = "shop" }', 'expected toolset = "shop"; got "local"'),
        ('result = "done"', "expected the result 'done'; got \"\""),
        ("result = { success = false }", "expected success = false of the result; got true"),
    ],
)
async def test_what_a_rewritten_call_is_expected_to_be_is_compared(
    registry: Registry, expect: str, problem: str
) -> None:
    call = 'call = { tool_name = "mail", args = { to = "4111 1111 1111 1111" } }'

    result = await run_one(registry, f'[[tests]]\nname = "t"\n{call}\nexpect = {{ verdict = "rewritten", {expect} }}')

    assert result.problems == [problem]


async def test_a_hook_that_crashes_has_not_denied(registry: Registry) -> None:
    hooks = '[[hooks]]\nname = "Broken"\npoint = "ToolCall.guard"\nscript = "broken.py"\n'
    test = '[[tests]]\nname = "t"\ncall = { tool_name = "x" }\nexpect = "denied"'

    result = await run_one(registry, test, hooks)

    assert result.problems[0].startswith("expected denied; got failed by 'Broken': ")


async def test_a_webhook_without_a_declared_answer_fails_the_test_and_nothing_is_sent(registry: Registry) -> None:
    result = await run_one(registry, '[[tests]]\nname = "t"\ncall = { tool_name = "refund" }\nexpect = "failed"')

    assert result.problems == ["a test sends nothing; give the answer of 'Fraud check' in `webhook_answers`"]


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.sampled_from(["bash", "search", "mail", "look", "pay"]), min_size=1, max_size=6),
    st.permutations(range(4)),
)
async def test_what_a_test_says_is_what_a_run_does(names: list[str], order: list[int]) -> None:
    hooks = [
        '[[hooks]]\nname = "Shell"\npoint = "ToolCall.guard"\nhandler = "deny-tools"\nconfig = { tools = ["bash"] }\n',
        '[[hooks]]\nname = "Few"\npoint = "ToolCall.guard"\nhandler = "limit-calls"\nconfig = { n = 2, tool = "search" }\n',
        '[[hooks]]\nname = "All"\npoint = "ToolCall.guard"\nhandler = "deny-text"\nconfig = { texts = ["pay"] }\n',
        '[[hooks]]\nname = "Hide"\npoint = "ToolCall.before"\nhandler = "redact"\nconfig = { patterns = ["card"], args = true }\n',
    ]
    args = {"text": "pay by 4111 1111 1111 1111"}
    ran: list[dict[str, object]] = []

    def make(name: str) -> Tool:
        @tool(name=name, in_thread=False)
        async def run(text: str) -> str:
            ran.append({"text": text})
            return "done"

        return run

    rows = [
        f'{{ call = {{ tool_name = "{name}", args = {{ text = "{args["text"]}" }} }}, expect = "continued" }}'
        for name in names
    ]
    text = "".join(hooks[each] for each in order) + f'[[tests]]\nname = "t"\ncalls = [{", ".join(rows)}]\n'
    with TemporaryDirectory() as folder:
        file = Path(folder) / "hooks.toml"
        file.write_text(text)
        async with Registry(files=[file]) as registry:
            (result,) = await registry.test_file(file)
            turns = [ModelResponse(tool_calls=[ToolRequest(name, args)]) for name in names]
            agent = Agent(
                id="a",
                model=ScriptedModel([*turns, ModelResponse(content="done")]),
                tools=[make(name) for name in {*names}],
            )
            outcome = await exec_agent(agent, "go", hooks=[*registry.hooks()])

    said = [message.content for message in outcome.messages if message.role == "tool"]
    assert [call.reason or "done" for call in result.calls] == said
    assert [call.call["args"] for call in result.calls if call.call is not None] == ran


async def test_each_test_has_new_hooks(registry: Registry) -> None:
    call = '{ call = { tool_name = "search" }, expect = "allowed" }'
    tests = "\n".join(f'[[tests]]\nname = "{name}"\ncalls = [{call}, {call}]' for name in "abc")

    results = await registry.test_file(parse(tests))

    assert [result.passed for result in results] == [True] * 3


async def test_other_kinds_of_calls_are_judged(registry: Registry) -> None:
    hooks = """\
[[hooks]]
name = "No cards"
point = "ModelCall.before"
handler = "deny-text"
config = { patterns = ["card"] }

[[hooks]]
name = "Kind"
point = "ModelCall.after"
script = "guide.py"

[[hooks]]
name = "Currency"
point = "ToolCall.guard"
script = "context.py"
"""
    tests = """\
[[tests]]
name = "A card in the conversation is refused"
hook = "No cards"
call = { messages = [{ role = "user", content = "I pay by 4111 1111 1111 1111" }] }
expect = { verdict = "denied", by = "No cards" }

[[tests]]
name = "The model is asked again"
type = "ModelCall"
call = { messages = [{ role = "user", content = "hello" }], step_index = 3, agent_id = "clerk" }
result = { content = "go away" }
expect = { verdict = "guided", by = "Kind", reason = "kind" }

[[tests]]
name = "Context is added"
call = { tool_name = "price" }
expect = { verdict = "allowed", by = "Currency", context = "EUR" }
"""

    results = await registry.test_file(parse(tests, hooks))

    assert [result.problems for result in results] == [[], [], []]


async def test_hooks_are_for_the_tenants_of_their_definitions(registry: Registry) -> None:
    hooks = """\
[[hooks]]
name = "System"
point = "ToolCall.guard"
handler = "deny"
tool = "bash"
except_tenants = ["trusted"]

[[hooks]]
name = "Own"
point = "ToolCall.guard"
handler = "deny"
tool = "look"
tenant_id = "acme"
"""
    calls = [
        ("bash", "other", "denied"),
        ("bash", "trusted", "allowed"),
        ("look", "acme", "denied"),
        ("look", "", "allowed"),
    ]
    rows = [f'{{ call = {{ tool_name = "{a}", tenant_id = "{b}" }}, expect = "{c}" }}' for a, b, c in calls]

    result = await run_one(registry, f'[[tests]]\nname = "t"\ncalls = [{", ".join(rows)}]', hooks)

    assert result.problems == []


async def test_a_test_holds_before_a_hook_is_rolled_out_and_after(registry: Registry) -> None:
    hook = '[[hooks]]\nname = "Soon"\npoint = "ToolCall.guard"\nhandler = "deny"\n'
    test = '[[tests]]\nname = "t"\ncall = { tool_name = "x" }\nexpect = { verdict = "denied", by = "Soon" }'

    for degree in ("", 'mode = "shadow"\n', "percent = 0\n", "percent = 0.01\n", 'environments = ["production"]\n'):
        assert (await run_one(registry, test, hook + degree)).problems == []


async def test_the_agent_and_the_tenant_of_a_call_count(registry: Registry) -> None:
    hooks = """\
[[hooks]]
name = "Refunds"
point = "ToolCall.guard"
handler = "deny"
agents = ["refund*"]
percent = 10
tenants = ["acme", "initech"]
"""
    calls = [("refunder", "acme", "denied"), ("refunder", "other", "allowed"), ("clerk", "acme", "allowed")]
    rows = [
        f'{{ call = {{ tool_name = "x", agent_id = "{agent}", tenant_id = "{tenant}" }}, expect = "{verdict}" }}'
        for agent, tenant, verdict in calls
    ]

    right = await run_one(registry, f'[[tests]]\nname = "t"\ncalls = [{", ".join(rows)}]', hooks)
    wrong = await run_one(registry, '[[tests]]\nname = "t"\ncall = { tool_name = "x" }\nexpect = "denied"', hooks)

    assert right.problems == []
    assert wrong.problems == ["expected denied; got allowed (not for its tenant, agent or tags: 'Refunds')"]


async def test_the_tags_of_a_call_count(registry: Registry) -> None:
    hooks = '[[hooks]]\nname = "VIPs"\npoint = "ToolCall.guard"\nhandler = "deny"\noperation_tags = ["vip*", "eu"]\n'
    calls = [('"vip1"', "denied"), ('"x", "eu"', "denied"), ('"x"', "allowed"), ("", "allowed")]
    rows = [f'{{ call = {{ tool_name = "x", tags = [{tags}] }}, expect = "{verdict}" }}' for tags, verdict in calls]

    assert (await run_one(registry, f'[[tests]]\nname = "t"\ncalls = [{", ".join(rows)}]', hooks)).problems == []


async def test_a_budget_is_new_in_each_test(database_url: str) -> None:
    hooks = """\
[[hooks]]
name = "Two calls a day"
point = "ToolCall.guard"
handler = "budget"
config = { calls = 2, per = "tenant", window = "1d" }
"""
    rows = [f'{{ call = {{ tool_name = "x" }}, expect = "{verdict}" }}' for verdict in ("allowed", "allowed", "denied")]
    tests = "".join(f'[[tests]]\nname = "{name}"\ncalls = [{", ".join(rows)}]\n' for name in "ab")

    async with SqlStore(database_url) as store, Registry(store) as registry:
        results = await registry.test_file(parse(tests, hooks))

    assert [result.problems for result in results] == [[], []]


async def test_hooks_of_one_priority_decide_in_the_order_of_the_file(registry: Registry) -> None:
    hook = '[[hooks]]\nname = "{0}"\npoint = "ToolCall.guard"\nhandler = "deny"\nconfig = {{ reason = "{0}" }}\n'
    names = ["zeta", "alpha", "mu", "beta"]
    test = '[[tests]]\nname = "t"\ncall = { tool_name = "x" }\nexpect = { verdict = "denied", by = "zeta" }'

    result = await run_one(registry, test, "".join(hook.format(name) for name in names))

    assert result.problems == []


OBSERVERS = """\
[[hooks]]
name = "Tell billing"
point = "afterToolCall"
tool = "*/refund"
webhook = { url = "https://billing.example/hooks" }

[[hooks]]
name = "Note"
point = "afterToolCall"
handler = "tests.registry.factories:breaking"
config = { at = "refund" }
enabled = false

[[hooks]]
name = "Endless"
point = "onComplete"
handler = "tests.registry.factories:late"
agents = ["slow*"]
"""
HEARD = {
    "heard": (
        'type = "afterToolCall"\nevent = { tool_name = "refund" }\nexpect = { verdict = "heard", by = "Tell billing" }',
        "",
    ),
    "ignored": ('type = "afterToolCall"\nevent = { tool_name = "pay" }\nexpect = "ignored"', ""),
    "by name": ('hook = "Note"\nevent = { tool_name = "pay" }\nexpect = "heard"', ""),
    "failed": (
        'hook = "Note"\nevent = { tool_name = "refund" }\nexpect = { verdict = "failed", reason = "no refund" }',
        "",
    ),
    "timeout": ('hook = "Endless"\nevent = { agent_id = "slow1" }\nexpect = "failed"', ""),
    "wrong": (
        'type = "afterToolCall"\nevent = { tool_name = "pay" }\nexpect = "heard"',
        "expected heard; got ignored",
    ),
    "failure": (
        'hook = "Note"\nevent = { tool_name = "refund" }\nexpect = "heard"',
        "got failed by 'Note': ValueError",
    ),
    "other agent": (
        'hook = "Endless"\nevent = { agent_id = "fast" }\nexpect = "heard"',
        "got ignored (not for its tenant, agent or tags: 'Endless')",
    ),
}


@for_each("test, problem", HEARD.values(), ids=HEARD)
async def test_a_test_says_which_observers_hear_an_event_and_whether_they_fail(
    registry: Registry, test: str, problem: str
) -> None:
    file = parse(f'[[tests]]\nname = "t"\n{test}\n', OBSERVERS)

    [result] = await registry.test_file(file, timeout=0.5)

    assert result.passed is not bool(problem), result.problems
    assert problem in "; ".join(result.problems)
    assert not hook_executed.receivers


async def test_calls_and_events_of_a_test_follow_each_other(registry: Registry) -> None:
    test = """\
[[tests]]
name = "both"
calls = [
  { call = { tool_name = "bash" }, expect = "denied" },
  { type = "onComplete", event = {}, expect = "heard" },
]
"""
    [result] = await registry.test_file(parse(test))

    assert (result.passed, [each.verdict for each in result.calls]) == (True, ["denied", "heard"])


async def test_a_disabled_hook_is_tested_only_by_name(registry: Registry) -> None:
    hooks = '[[hooks]]\nname = "Off"\npoint = "ToolCall.guard"\nhandler = "deny"\nenabled = false\n'
    test = '[[tests]]\nname = "{}"\n{}call = {{ tool_name = "x" }}\nexpect = "{}"\n'

    results = await registry.test_file(
        parse(test.format("all", "", "allowed") + test.format("one", 'hook = "Off"\n', "denied"), hooks)
    )

    assert [result.passed for result in results] == [True, True]


async def test_nothing_is_announced_or_stored_by_a_test(registry: Registry, tmp_path: Path) -> None:
    before = registry.tenants(), (await registry.list()).items

    await run_one(registry, f'[[tests]]\nname = "t"\n{PASSING["denied"]}')

    assert (registry.tenants(), (await registry.list()).items) == before
    assert not chain_ran.receivers
    assert not hook_executed.receivers


INVALID = {
    "unknown-key": ('name = "t"\ncal = {}', 3, "$.tests[0].cal", "unknown field `cal`"),
    "no-name": ('call = {}\nexpect = "denied"', 1, "$.tests[0].name", "missing required field `name`"),
    "no-call": ('name = "t"\nexpect = "denied"', 1, "$.tests[0].call", "missing required field `call`"),
    "no-expectation": ('name = "t"\ncall = {}', 1, "$.tests[0].expect", "missing required field `expect`"),
    "no-verdict": ('name = "t"\ncall = {}\nexpect = "forbidden"', 4, "$.tests[0].expect", "invalid enum value"),
    "no-hook": ('name = "t"\nhook = "Nobody"\ncall = {}\nexpect = "denied"', 3, "$.tests[0].hook", "there is no hook"),
    "no-hook-by": (
        'name = "t"\ncall = {}\nexpect = { verdict = "denied", by = "Nobody" }',
        4,
        "$.tests[0].expect.by",
        "there is no hook 'Nobody' in this file; it has 'No shell'",
    ),
    "observer": (
        'name = "t"\nhook = "Tell billing"\ncall = {}\nexpect = "denied"',
        3,
        "$.tests[0].hook",
        "decides about no call; give an `event`",
    ),
    "no-field": ('name = "t"\ncall = { colour = 1 }\nexpect = "denied"', 3, "$.tests[0].call.colour", "has no field"),
    "wrong-type": (
        'name = "t"\ncall = { tool_name = 1 }\nexpect = "denied"',
        3,
        "$.tests[0].call.api_name",
        "Expected `str`",
    ),
    "no-call-type": ('name = "t"\ntype = "Call"\ncall = {}\nexpect = "denied"', 3, "$.tests[0].type", "is no call"),
    "reason-of-nothing": (
        'name = "t"\ncall = {}\nexpect = { verdict = "mocked", reason = "x" }',
        4,
        "$.tests[0].expect.reason",
        "there is no reason",
    ),
    "args-of-a-denial": (
        'name = "t"\ncall = {}\nexpect = { verdict = "denied", args = {} }',
        4,
        "$.tests[0].expect.args",
        "is not made",
    ),
    "call-and-calls": (
        'name = "t"\ncall = {}\nexpect = "denied"\ncalls = [{ call = {}, expect = "denied" }]',
        3,
        "$.tests[0].call",
        "each call has its own `call`",
    ),
    "two-spellings": (
        'name = "t"\nwebhook_answers = {}\nwebhookAnswers = {}',
        4,
        "$.tests[0].webhookAnswers",
        "two spellings",
    ),
    "answer-of-no-webhook": (
        'name = "t"\ncall = {}\nexpect = "denied"\nwebhook_answers = { shell = {} }',
        5,
        "$.tests[0].webhookAnswers",
        "is no webhook with `control = true`",
    ),
    "result-in-call": ('name = "t"\ncall = { result = "x" }\nexpect = "denied"', 3, "$.tests[0].call.result", "beside"),
    "event-of-a-guard": (
        'name = "t"\nhook = "No shell"\nevent = {}\nexpect = "heard"',
        4,
        "$.tests[0].event",
        "decides about calls",
    ),
    "call-and-event": ('name = "t"\ncall = {}\nevent = {}\nexpect = "heard"', 4, "$.tests[0].event", "leave one out"),
    "event-without-type": ('name = "t"\nevent = {}\nexpect = "heard"', 1, "$.tests[0].type", "needs a `type`"),
    "no-event-type": (
        'name = "t"\ntype = "ToolCall"\nevent = {}\nexpect = "heard"',
        3,
        "$.tests[0].type",
        "'ToolCall' is no event",
    ),
    "deciding-event": (
        'name = "t"\ntype = "beforeToolCall"\nevent = {}\nexpect = "heard"',
        3,
        "$.tests[0].type",
        "decide about the call",
    ),
    "denied-event": (
        'name = "t"\ntype = "onComplete"\nevent = {}\nexpect = "denied"',
        5,
        "$.tests[0].expect",
        "nobody decides about onComplete",
    ),
    "heard-call": ('name = "t"\ncall = {}\nexpect = "heard"', 4, "$.tests[0].expect", "give an `event`"),
    "reason-of-heard": (
        'name = "t"\ntype = "onComplete"\nevent = {}\nexpect = { verdict = "heard", reason = "x" }',
        5,
        "$.tests[0].expect.reason",
        "there is no `reason`",
    ),
    "no-field-of-event": (
        'name = "t"\ntype = "onComplete"\nevent = { colour = 1 }\nexpect = "heard"',
        4,
        "$.tests[0].event.colour",
        "has no field",
    ),
    "no-calls": ('name = "t"\ncalls = []', 3, "$.tests[0].calls", "length >= 1"),
}


@for_each("test, line, path, problem", INVALID.values())
async def test_an_invalid_test_is_an_error_of_the_file_with_its_line(
    registry: Registry, test: str, line: int, path: str, problem: str
) -> None:
    first = HOOKS.count("\n") + 1

    with pytest.raises(DefinitionFileError) as caught:
        await run_one(registry, f"[[tests]]\n{test}")

    assert (caught.value.file, caught.value.path) == ("hooks.toml", path)
    assert caught.value.line == first + line
    assert problem in caught.value.problem


async def test_the_line_of_a_call_among_several_is_named(registry: Registry) -> None:
    text = """\
[[tests]]
name = "t"

[[tests.calls]]
call = { tool_name = "a" }
expect = "allowed"

[[tests.calls]]
call = { tool_name = "a" }
[tests.calls.expect]
verdict = "nothing"
"""
    with pytest.raises(DefinitionFileError) as caught:
        await run_one(registry, text)

    assert caught.value.path == "$.tests[0].calls[1].expect.verdict"
    assert caught.value.line == HOOKS.count("\n") + 12


async def test_two_tests_with_one_name_are_refused(registry: Registry) -> None:
    test = f'[[tests]]\nname = "t"\n{PASSING["allowed"]}\n'

    with pytest.raises(DefinitionFileError, match="two tests have the name 't'"):
        await registry.test_file(parse(test * 2))


async def test_a_test_of_two_hooks_with_one_name_needs_an_id(registry: Registry) -> None:
    hooks = "".join(
        f'[[hooks]]\nname = "Same"\npoint = "ToolCall.{kind}"\nhandler = "deny"\n' for kind in ("guard", "before")
    )

    with pytest.raises(DefinitionFileError, match="several hooks have the name 'Same'"):
        await run_one(registry, '[[tests]]\nname = "t"\nhook = "Same"\ncall = {}\nexpect = "denied"', hooks)


async def test_yaml_and_json_files_have_tests_too(registry: Registry, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("""\
hooks:
  - {name: No shell, point: ToolCall.guard, handler: deny-tools, config: {tools: [bash]}}
tests:
  - name: A shell is refused
    call: {tool_name: bash}
    expect: denied
  - name: Not so
    call: {tool_name: bash}
    expect:
      verdict: allowed
""")
    (tmp_path / "a.json").write_text(
        '{"hooks": [{"name": "N", "point": "ToolCall.guard", "handler": "deny"}], '
        '"tests": [{"name": "t", "call": {"apiName": "x"}, "expect": "denied"}]}'
    )

    yaml = await registry.test_file(tmp_path / "a.yaml")
    json = await registry.test_file(tmp_path / "a.json")

    assert [(each.passed, each.line) for each in yaml] == [(True, 4), (False, 7)]
    assert [(each.passed, each.line) for each in json] == [(True, None)]


async def test_a_registry_reads_a_file_with_tests(tmp_path: Path) -> None:
    (tmp_path / "hooks.toml").write_text(f'{HOOKS}\n[[tests]]\nname = "t"\n{PASSING["denied"]}\n')

    async with Registry(files=[tmp_path / "hooks.toml"]) as registry:
        assert len((await registry.list()).items) == 6


@for_each(
    "data, problem",
    [
        (b"\xff\xfe[\x00", "UTF-8"),
        ("[[hooks]]\nname = 'ü'".encode("latin-1"), "UTF-8"),
        (b'[[tests]]\nname = "\x00"', "TOML"),
        (b'[[tests]]\nname = "\\u0000"\ncall = {}\nexpect = "denied"', "matching regex"),
        (b"tests = 3", "must be a list of tables"),
        (b"tests = [3]", "must be a list of tables"),
        (b"[checks]", "unknown key 'checks'"),
    ],
)
async def test_a_file_that_is_none_is_refused(registry: Registry, tmp_path: Path, data: bytes, problem: str) -> None:
    (tmp_path / "hooks.toml").write_bytes(data)

    with pytest.raises(DefinitionFileError, match=problem):
        await registry.test_file(load_hook_file(tmp_path / "hooks.toml"))


@settings(max_examples=150, deadline=None)
@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.text(max_size=8)
        | st.sampled_from(["denied", "shell", "search"]),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["name", "hook", "type", "call", "calls", "expect", "verdict", "by", "tool_name", "args"]
                )
                | st.text(max_size=5),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    )
)
def test_any_test_is_parsed_or_refused(entry: object) -> None:
    import msgspec

    hooks = [{"id": "shell", "name": "N", "point": "ToolCall.guard", "handler": "deny"}]
    data = msgspec.json.encode({"hooks": hooks, "tests": [entry]})
    with suppress(DefinitionFileError):
        read_hook_tests(parse_hook_file("a.json", data, suffix=".json"))
