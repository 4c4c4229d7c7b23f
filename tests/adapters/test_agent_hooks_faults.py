"""Policies that fail, hang, lie or answer nonsense: the run fails closed and goes on as documented."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
from typing import Any

import anyio
import pytest
from agent_hooks import HostRegistry, Verdict

from hookline import Agent, Message, ScriptedModel, exec_agent, tool
from hookline.adapters.agent_hooks import PolicyHooks, PolicyTransformError, host_surface
from hookline.errors import HookDefinitionError, install_command
from tests.tables import for_each

from .policies import AsyncPolicy, Context, Policy, Sums, agent, asks, says, told, transform

pytestmark = pytest.mark.anyio


@for_each(
    ("answer", "reason"),
    [
        (RuntimeError("secret-key"), "host_error:interceptor_failed: RuntimeError"),
        (lambda context: None, "host_error:verdict_invalid"),
        (lambda context: {"decision": "perhaps"}, "host_error:verdict_invalid"),
        (lambda context: {"decision": "deny", "reason": "host_error:mine"}, "host_error:verdict_invalid"),
        (
            lambda context: {"decision": "transform", "transform": {"path": "$other", "value": 1}},
            "host_error:transform_target_forbidden",
        ),
        (transform("$target.nowhere.at.all", 1), "host_error:transform_invalid"),
        (transform("$target", "text"), "arguments must be an object"),
    ],
)
async def test_a_policy_that_answers_nonsense_denies_the_call(answer: Any, reason: str) -> None:
    sums, policy = Sums(), Policy(pre_tool_call=answer)

    result = await exec_agent(
        agent(sums, asks("pay", to="Ada", amount=1), says("ok")), "go", hooks=[PolicyHooks(policy)]
    )

    assert sums.paid == []
    assert reason in told(result)[0]
    assert "secret-key" not in told(result)[0]
    assert result.output == "ok"


@for_each(
    ("point", "path", "value"),
    [
        ("input", "$target.content", {"parts": []}),
        ("input", "$target.role", "system"),
        ("pre_model_call", "$target", "hello"),
        ("pre_model_call", "$target[0].role", "wizard"),
        ("pre_model_call", "$target[0].content", 5),
        ("pre_model_call", "$target[0]", "hello"),
        ("post_model_call", "$target.content", 5),
        ("post_model_call", "$target.tool_calls", [{"args": {}}]),
        ("post_model_call", "$target.tool_calls", [{"name": "x", "args": 5}]),
        ("post_model_call", "$target.tool_calls", "none"),
        ("output", "$target.content", 5),
        ("output", "$target.content", {"text": "hello"}),
    ],
)
async def test_a_transform_into_something_of_another_shape_fails_closed(point: str, path: str, value: Any) -> None:
    policies = PolicyHooks(Policy(**{point: transform(path, value)}))

    result = await exec_agent(agent(Sums(), says("secret")), "go", hooks=[policies])

    assert (result.reason, result.output) == ("interrupted", "")
    assert result.denied is not None
    assert f"transform at {point} cannot be used" in result.denied.reason
    failed = [record for record in policies.records if record.verdict.reason == "host_error:context_invalid"]
    assert [(record.interception_point, record.verdict.message) for record in failed] == [
        (point, "PolicyTransformError")
    ]
    sequence = [record.sequence for record in policies.records]
    assert sequence == list(range(len(sequence)))


@for_each("point", ["input", "post_model_call", "output"])
async def test_a_transform_that_leaves_no_context_fails_closed(point: str) -> None:
    result = await exec_agent(
        agent(Sums(), says("secret")), "go", hooks=[PolicyHooks(Policy(**{point: transform("$target", "hello")}))]
    )

    assert (result.reason, result.output) == ("interrupted", "")
    assert result.denied is not None
    assert result.denied.reason.startswith("host_error:context_invalid")


@pytest.mark.parametrize("point", ["agent_startup", "agent_shutdown"])
async def test_there_is_nothing_to_transform_at_the_ends(point: str) -> None:
    policies = PolicyHooks(Policy(**{point: transform("$target", {})}))

    await exec_agent(agent(Sums(), says("ok")), "go", hooks=[policies])

    assert [r.verdict.reason for r in policies.records if r.interception_point == point] == [
        "host_error:transform_target_forbidden"
    ]


async def test_a_policy_that_hangs_is_stopped_by_its_timeout() -> None:
    class Hanging(Policy):
        async def intercept(self, context: Context) -> Verdict:
            if context["interception_point"] == "pre_tool_call":
                await anyio.sleep_forever()
            return Verdict.allow()

    sums = Sums()
    policies = PolicyHooks(Hanging(), timeout=0.02)

    result = await exec_agent(agent(sums, asks("pay", to="Ada", amount=1), says("ok")), "go", hooks=[policies])

    assert (told(result), sums.paid, result.output) == (["host_error:interceptor_timeout"], [], "ok")


async def test_a_policy_that_blocks_holds_nobody_up_in_a_thread() -> None:
    release = threading.Event()
    threads: list[str] = []

    class Blocking(Policy):
        def intercept(self, context: Context) -> Verdict:
            threads.append(threading.current_thread().name)
            release.wait(5)
            return Verdict.allow()

    sums = Sums()
    policies = PolicyHooks(Blocking(), in_thread=True, timeout=0.25, at=["pre_tool_call"])

    result = await exec_agent(agent(sums, asks("pay", to="Ada", amount=1), says("ok")), "go", hooks=[policies])
    release.set()

    assert (told(result), sums.paid) == (["host_error:interceptor_timeout"], [])
    assert threading.main_thread().name not in threads


async def test_an_async_policy_may_run_with_plain_ones_in_threads() -> None:
    policy = AsyncPolicy()

    result = await exec_agent(agent(Sums(), says("ok")), "go", hooks=[PolicyHooks(policy, Policy(), in_thread=True)])

    assert result.output == "ok"
    assert policy.points[-1] == "agent_shutdown"


async def test_a_resolver_that_hangs_fails_closed() -> None:
    class Asleep:
        async def resolve(self, request: Any) -> Any:
            await anyio.sleep_forever()

    sums = Sums()
    policies = PolicyHooks(Policy(pre_tool_call=Verdict.escalate()), approvals=Asleep(), approval_timeout=0.02)

    result = await exec_agent(agent(sums, asks("pay", to="Ada", amount=1), says("ok")), "go", hooks=[policies])

    assert (told(result), sums.paid) == (["host_error:approval_resolver_failed: timeout"], [])


async def test_what_a_policy_does_to_the_context_reaches_nobody() -> None:
    def tamper(context: Context) -> Verdict:
        context["target"]["amount"] = 999
        context["tool_call"]["args"]["amount"] = 999
        return Verdict.allow()

    sums, second = Sums(), Policy("second")
    policies = PolicyHooks(Policy(pre_tool_call=tamper), second, profile="parallel/strictest")

    await exec_agent(agent(sums, asks("pay", to="Ada", amount=1), says("ok")), "go", hooks=[policies])

    assert sums.paid == [("Ada", 1)]
    assert second.at("pre_tool_call")[0]["target"]["amount"] == 1


async def test_arguments_that_json_cannot_carry_are_denied() -> None:
    sums = Sums()

    result = await exec_agent(
        agent(sums, asks("pay", to="Ada", amount=float("nan")), says("ok")), "go", hooks=[PolicyHooks(Policy())]
    )

    assert sums.paid == []
    assert result.denied is not None
    assert result.denied.reason.startswith("host_error:context_invalid")


async def test_arguments_that_are_no_json_show_as_none_and_do_not_run() -> None:
    sums, policy = Sums(), Policy()
    turn = asks("pay")
    broken = ScriptedModel(
        [
            type(turn)(tool_calls=[type(turn.tool_calls[0])(tool_name="pay", args="{oops", tool_call_id="t1")]),
            says("ok"),
        ]
    )

    result = await exec_agent(Agent(id="a", model=broken, tools=sums.tools()), "go", hooks=[PolicyHooks(policy)])

    assert (sums.paid, result.output) == ([], "ok")
    assert policy.at("pre_tool_call")[0]["target"] == {}
    assert policy.at("post_tool_call")[0]["tool_result"]["is_error"] is True


async def test_a_tool_that_raised_is_judged_as_an_error() -> None:
    policy = Policy()

    @tool
    async def broken() -> str:
        raise ValueError("no connection")

    run = Agent(id="a", model=ScriptedModel([asks("broken"), says("ok")]), tools=[broken])
    await exec_agent(run, "go", hooks=[PolicyHooks(policy)])

    assert policy.at("post_tool_call")[0]["tool_result"] == {"value": "no connection", "is_error": True}


async def test_a_listener_of_records_that_raises_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    records: list[Any] = []

    def listener(record: Any) -> None:
        records.append(record)
        raise OSError("disk full")

    result = await exec_agent(agent(Sums(), says("ok")), "go", hooks=[PolicyHooks(Policy(), on_record=listener)])

    assert (result.output, len(records)) == ("ok", 6)
    assert "`on_record` raised an error" in caplog.text


async def test_records_hold_no_content_and_only_so_many_are_kept() -> None:
    policies = PolicyHooks(Policy(), max_records=3)

    await exec_agent(agent(Sums(), says("the secret answer")), "the secret question", hooks=[policies])

    assert len(policies.records) == 3
    assert "secret" not in repr(policies.records)


async def test_details_of_a_model_go_with_what_was_left_alone_only() -> None:
    signed = type(says("x"))(content="Ada's number is 7", details={"signature": "Ada's number is 7"})
    policies = PolicyHooks(
        Policy(post_model_call=transform("$target.content", "hidden")),
    )

    result = await exec_agent(
        Agent(id="a", model=ScriptedModel([signed])),
        [Message(role="assistant", content="kept", details={"signature": "s"}), Message(role="user", content="?")],
        hooks=[policies],
    )

    assert [message.details for message in result.messages] == [{"signature": "s"}, {}, {}]


@for_each(
    ("options", "problem"),
    [
        ({"mode": "dry_run"}, "`mode` must be"),
        ({"profile": "most_permissive"}, "`profile` must be one of"),
        ({"at": ["before_lunch"]}, "`at` must name some of the points"),
        ({"at": []}, "`at` must name some of the points"),
        ({"approvals": "maybe"}, "`approvals` must be"),
        ({"timeout": 0}, "`timeout` must be a number of seconds"),
        ({"approval_timeout": "5"}, "`approval_timeout` must be a number of seconds"),
        ({"identity": "sha1"}, "`identity` must be"),
    ],
)
async def test_options_that_cannot_work_are_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(HookDefinitionError, match=problem):
        PolicyHooks(Policy(), **options)


async def test_what_is_no_policy_is_refused() -> None:
    with pytest.raises(HookDefinitionError, match="a policy must be an object with a method `intercept"):
        PolicyHooks(lambda context: Verdict.allow())


async def test_a_declaration_configures_policies() -> None:
    policy, sums = Policy(pre_tool_call=Verdict.deny(reason="never")), Sums()
    registry = HostRegistry(host_surface()).kind("acme.policy", lambda config, binding: policy)
    document = {
        "declaration": "agent-hooks-declaration/1.0",
        "configuration": {"composition": {"profile": "sequential/run_all"}},
        "bindings": [{"id": "acme", "kind": "acme.policy"}],
    }
    policies = PolicyHooks.from_declaration(document, registry)

    result = await exec_agent(agent(sums, asks("pay", to="Ada", amount=1), says("ok")), "go", hooks=[policies])

    assert (told(result), sums.paid) == (["never"], [])
    assert {record.declaration for record in policies.records} == {"agent-hooks-declaration/1.0"}
    assert {record.composition.profile.value for record in policies.records} == {"sequential/run_all"}


def test_the_error_says_what_to_do_and_pickles() -> None:
    error = PolicyTransformError("input", "`content` is text; it became dict")

    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert "transform at input cannot be used" in str(error)


def test_the_sdk_is_needed_by_the_adapter_alone() -> None:
    script = """
import sys
import hookline, hookline.runtime, hookline.builtin
assert "agent_hooks" not in sys.modules
sys.modules["agent_hooks"] = None
try:
    import hookline.adapters.agent_hooks
except hookline.errors.MissingExtraError as missing:
    print(missing)
"""

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout.strip() == (
        f"hookline.adapters.agent_hooks needs an extra that is not installed: {install_command('agent-hooks')}"
    )


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # to write six megabytes as JSON waits for nothing
@for_each("content", ["\ud800", "x" * 6_000_000])
async def test_input_that_no_context_can_carry_ends_the_run_and_harms_nobody(content: str) -> None:
    result = await exec_agent(agent(Sums(), says("ok")), content, hooks=[PolicyHooks(Policy())])

    assert result.reason in ("done", "interrupted")
    assert result.error is None


async def test_arguments_that_are_nested_deeply_are_denied() -> None:
    args: Any = {}
    for _ in range(150):
        args = {"a": args}
    ran: list[Any] = []

    @tool
    async def deep(a: dict[str, Any]) -> str:
        ran.append(a)
        return "ran"

    run = Agent(id="a", model=ScriptedModel([asks("deep", a=args), says("ok")]), tools=[deep])
    result = await exec_agent(run, "go", hooks=[PolicyHooks(Policy())])

    assert ran == []
    assert result.denied is not None


async def test_runs_at_the_same_time_share_a_bundle_and_nothing_else() -> None:
    policies = PolicyHooks(AsyncPolicy(pre_tool_call=lambda context: transform("$target.to", context["session"]["id"])))
    paid: dict[str, Any] = {}

    async def one(name: str) -> None:
        sums = Sums()
        run = agent(sums, asks("pay", to="x", amount=1), says("ok"))
        result = await exec_agent(run, "go", hooks=[policies])
        paid[name] = (sums.paid, result.operation_id)

    async with anyio.create_task_group() as group:
        for name in "abcdefgh":
            group.start_soon(one, name)

    assert all(sums == [(operation_id, 1)] for sums, operation_id in paid.values())
    for _, operation_id in paid.values():
        own = [record.sequence for record in policies.records if record.session_id == operation_id]
        assert own == list(range(10))
