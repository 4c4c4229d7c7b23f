"""`hookline eval` with models and agents in place of a suite's own, asked at a provider on loopback."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from hookline.cli._app import app
from hookline.evals import load_run
from tests.adapters.provider import Exchange, Provider, completion, function

SUITE = """\
suite: shop
tools: shop_tools:tools
checks: [{called: price}]
tasks:
  - id: tea
    prompt: What does tea cost?
    tags: [hot]
    script: [{tool: price, args: {item: tea}}, {say: Tea is 4 EUR.}]
    checks: [{output_contains: "4 EUR"}]
  - id: juice
    prompt: What does juice cost?
    script: [{tool: price, args: {item: juice}}, {say: Juice is 3 EUR.}]
    checks: [{output_contains: "3 EUR"}]
"""

TOOLS = '''\
from hookline import Agent, ModelResponse, ScriptedModel, ToolRequest, tool

@tool
def price(item: str) -> str:
    """Return the price of an item."""
    with open("prices.log", "a") as log:
        log.write(item + "\\n")
    return {"tea": "4 EUR", "juice": "3 EUR"}[item]

tools = [price]

def clerk():
    return Agent(id="clerk", model="openai:gpt-5", instructions="Be a clerk.")

def for_task(task):
    turns = [ToolRequest("price", {"item": task.id}), f"It is {'4' if task.id == 'tea' else '3'} EUR."]
    return Agent(id=task.suite, model=ScriptedModel(turns), tools=task.tools)
'''


def serve_price(exchange: Exchange) -> None:
    """Answer as a model that looks the price up and says it; `gpt-5-mini` guesses."""
    messages = exchange.body["messages"]
    question = next(message["content"] for message in messages if message["role"] == "user")
    item = question.split()[-2]
    message: dict[str, Any] = {"role": "assistant", "content": None}
    if exchange.body["model"].startswith("gpt-5-mini"):
        message["content"] = "It is 4 EUR."
    elif messages[-1]["role"] == "tool":
        message["content"] = f"It is {messages[-1]['content']}."
    else:
        number = len(Exchanges.of(exchange))
        message["tool_calls"] = [function("price", json.dumps({"item": item}), f"call_{number}")]
    reason = "tool_calls" if message.get("tool_calls") else "stop"
    usage = {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100}
    choice = {"index": 0, "finish_reason": reason, "message": message}
    exchange.send_json(200, {**completion([choice], usage), "model": exchange.body["model"]})


class Exchanges:
    """The requests so far, by server."""

    provider: Provider

    @classmethod
    def of(cls, exchange: Exchange) -> list[Exchange]:
        return cls.provider.exchanges


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[Provider]:
    with Provider() as provider:
        provider.script(serve_price)
        Exchanges.provider = provider
        monkeypatch.setenv("OPENAI_BASE_URL", provider.url)
        monkeypatch.setenv("OPENAI_API_KEY", "key")
        yield provider


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "shop.yaml").write_text(SUITE)
    (tmp_path / "shop_tools.py").write_text(TOOLS)
    monkeypatch.chdir(tmp_path)
    sys.modules.pop("shop_tools", None)  # that of another file of tests
    yield "shop.yaml"
    sys.modules.pop("shop_tools", None)
    sys.path[:] = [each for each in sys.path if each != str(tmp_path)]


MODEL = "openai-chat:gpt-5"
MINI = "openai-chat:gpt-5-mini"


def run(*args: str) -> Result:
    return CliRunner().invoke(app, ["eval", *args], env={"COLUMNS": "120"})


def results_of(result: Result) -> dict[tuple[str, str], dict[str, Any]]:
    (document,) = json.loads(result.stdout)["runs"]
    return {(each["taskId"], each["model"]): each for each in document["results"]}


def test_a_model_runs_the_tasks_in_place_of_their_scripts(suite: str, provider: Provider) -> None:
    result = run(suite, "--model", MODEL, "--json")

    assert result.exit_code == 0, result.output
    found = results_of(result)
    assert found["tea", MODEL]["output"] == "It is 4 EUR."
    assert found["juice", MODEL]["costUsd"] > 0
    assert len(provider.exchanges) == 4
    assert json.loads(result.stdout)["runs"][0]["provenance"]["models"] == [MODEL]


def test_without_a_model_the_scripts_are_played(suite: str, provider: Provider) -> None:
    assert run(suite).exit_code == 0
    assert run(suite, "--model", "ground-truth").exit_code == 0
    assert not provider.exchanges


def test_models_stand_side_by_side(suite: str, provider: Provider, tmp_path: Path) -> None:
    saved = tmp_path / "run.jsonl"
    result = run(suite, "--model", MODEL, "--model", MINI, "--model", "ground-truth", "--save", str(saved))

    assert result.exit_code == 1  # the small model guesses
    for name in (MODEL, MINI, "ground-truth"):
        assert name in result.stdout
    assert [each.model for each in load_run(saved).results] == [MODEL, MINI, "ground-truth"] * 2
    worse = run("diff", str(saved), "--model", MODEL, "--model", MINI)
    assert worse.exit_code == 1, worse.output


@pytest.mark.usefixtures("forked_workers")
def test_models_run_in_worker_processes_and_a_run_is_resumed(suite: str, provider: Provider, tmp_path: Path) -> None:
    saved = tmp_path / "run.jsonl"
    models = ["--model", MODEL, "--model", "ground-truth"]
    assert run(suite, *models, "--repeat", "2", "--workers", "2", "--save", str(saved)).exit_code == 0
    lines = saved.read_bytes().splitlines(keepends=True)
    kept = [line for line in lines[1:] if f'"model":"{MODEL}"'.encode() in line][:2]
    saved.write_bytes(b"".join([lines[0], *kept]))
    provider.script(serve_price)

    resumed = run(suite, *models, "--repeat", "2", "--resume", str(saved), "--json")

    assert resumed.exit_code == 0, resumed.output
    assert len(load_run(saved).results) == 8
    assert len(provider.exchanges) == 4  # two of the four runs with the model are left
    other = run(suite, "--model", MODEL, "--repeat", "2", "--resume", str(saved))
    assert other.exit_code == 2
    assert "its models are" in other.stderr


@pytest.mark.parametrize("agent", ["shop_tools:clerk", "shop_tools.py:clerk"])
def test_an_agent_is_given_the_tools_of_the_suite(suite: str, provider: Provider, agent: str) -> None:
    result = run(suite, "--agent", agent, "--model", MODEL, "--json", "--task", "tea")

    assert result.exit_code == 0, result.output
    assert provider.bodies[0]["messages"][0]["content"] == "Be a clerk."
    assert [each["function"]["name"] for each in provider.bodies[0]["tools"]] == ["price"]


@pytest.mark.parametrize("further", [[], ["--workers", "1"]])
def test_a_function_makes_an_agent_for_each_task(suite: str, provider: Provider, further: list[str]) -> None:
    result = run(suite, "--agent", "shop_tools:for_task", "--json", *further)

    assert result.exit_code == 0, result.output
    assert set(results_of(result)) == {("tea", "shop_tools:for_task"), ("juice", "shop_tools:for_task")}
    assert not provider.exchanges


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--model", "gpt-5"], "no adapter that is installed knows the model 'gpt-5'"),
        (["--model", "ground-truth", "--model", "ground-truth"], "is given twice"),
        (["--agent", "shop_tools:nobody"], "'shop_tools' has no 'nobody'"),
        (["--agent", "shop_tools:TOOLS"], "'shop_tools' has no 'TOOLS'"),
        (["--agent", "shop_tools:tools"], "must be an Agent or a function that returns one"),
        (["--agent", "shop_tools:clerk", "--model", "ground-truth"], "asks no agent"),
        (["--agent", "missing.py:agent"], "there is no file missing.py"),
        (["--mocked", "--model", "ground-truth", "--model", "openai-chat:gpt-5"], "leave the second --model out"),
    ],
)
def test_what_cannot_run_a_suite_is_refused(suite: str, provider: Provider, options: list[str], said: str) -> None:
    result = run(suite, *options)

    assert result.exit_code == 2
    assert said in " ".join(result.stderr.replace("│", " ").split())
    assert not provider.exchanges


def bank_clerk(exchange: Exchange) -> None:
    """Answer AgentDojo's banking/user_task_1: look at the transactions, and say what was spent in March 2022."""
    messages = exchange.body["messages"]
    message: dict[str, Any] = {"role": "assistant", "content": "In March 2022 you spent 1050.00 in total."}
    if messages[-1]["role"] != "tool":
        message |= {"content": None, "tool_calls": [function("get_most_recent_transactions", '{"n": 100}', "call_1")]}
    choice = {"index": 0, "finish_reason": "tool_calls" if message.get("tool_calls") else "stop", "message": message}
    exchange.send_json(200, {**completion([choice]), "model": exchange.body["model"]})


BANK_TOOLS = 11


def test_a_model_works_on_the_environment_of_an_agentdojo_task(provider: Provider) -> None:
    provider.script(bank_clerk)
    args = ["agentdojo:banking", "--task", "user_task_1", "--model", MODEL, "--model", "ground-truth"]

    result = run(*args, "--json")

    assert result.exit_code == 0, result.output
    found = results_of(result)
    assert found["user_task_1", MODEL]["utility"] is True
    assert found["user_task_1", MODEL]["toolsRun"] == 1
    assert found["user_task_1", "ground-truth"]["utility"] is True
    assert len(provider.bodies[0]["tools"]) == BANK_TOOLS
    assert "Emma Johnson" in provider.bodies[0]["messages"][0]["content"]


@pytest.mark.usefixtures("forked_workers")
def test_a_model_that_does_not_solve_an_agentdojo_task_fails_it(provider: Provider) -> None:
    provider.script(bank_clerk)

    result = run("agentdojo:banking", "--task", "user_task_3", "--model", MODEL, "--workers", "1", "--json")

    assert result.exit_code == 1, result.output
    assert results_of(result)["user_task_3", MODEL]["utility"] is False


def test_the_model_of_agentdojo_is_the_ground_truth_by_default() -> None:
    result = run("agentdojo:banking", "--task", "user_task_1", "--json")

    assert result.exit_code == 0
    (document,) = json.loads(result.stdout)["runs"]
    assert document["provenance"]["models"] == ["ground-truth"]
    assert document["results"][0]["model"] == ""


BANK_AGENT = """\
from hookline import Agent, ModelResponse, ScriptedModel, ToolRequest

def transactions():
    return [ToolRequest("get_most_recent_transactions", {"n": 100}), "You spent 1050.00."]

def agent(task):
    return Agent(id="banker", model=ScriptedModel(transactions()), tools=task.tools)

def toolless(task):
    return Agent(id="banker", model=ScriptedModel(transactions()))
"""


@pytest.mark.usefixtures("forked_workers")
def test_an_agent_of_ones_own_runs_agentdojo_and_its_attacks(tmp_path: Path) -> None:
    (tmp_path / "banker.py").write_text(BANK_AGENT)
    target = str(tmp_path / "banker.py")
    task = ["agentdojo:banking", "--task", "user_task_1"]

    done = run(*task, "--agent", target, "--workers", "1", "--json")
    attacked = run("attack", *task, "--agent", target, "--policy", "no guard", "--processes", "1", "--json")
    refused = run(*task, "--agent", f"{target}:toolless")

    assert done.exit_code == 0, done.output
    assert results_of(done)["user_task_1", target]["utility"] is True
    assert attacked.exit_code == 0, attacked.output
    document = json.loads(attacked.stdout)
    assert document["model"] == target
    attempts = [each for each in document["attempts"] if each["injection_id"] is not None]
    assert attempts
    assert all(each["followed"] and each["useful"] and not each["goal"] for each in attempts)
    assert refused.exit_code == 2
    assert "none of the tools of suite 'banking'" in refused.stderr


@pytest.mark.usefixtures("forked_workers")
def test_an_attack_on_a_model_asks_that_model(provider: Provider) -> None:
    provider.script(bank_clerk)
    args = ["attack", "agentdojo:banking", "--task", "user_task_1", "--policy", "no guard", "--model", MODEL]

    result = run(*args, "--processes", "2", "--json")

    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["model"] == MODEL
    assert {each["reason"] for each in json.loads(result.stdout)["attempts"]} == {"done"}
    assert provider.exchanges


UNPRICED = "openai-chat:loopback-without-a-price"


def test_the_cost_of_a_model_without_a_price_is_unknown_and_never_0(
    suite: str, provider: Provider, tmp_path: Path
) -> None:
    files = {name: tmp_path / name for name in ("run.jsonl", "report.html", "junit.xml", "summary.md")}
    options = ["--save", "run.jsonl", "--report", "report.html", "--junit", "junit.xml", "--summary", "summary.md"]

    shown = run(suite, "--model", UNPRICED, "--model", MODEL, *options)
    document = json.loads(run(suite, "--model", UNPRICED, "--json").stdout)["runs"][0]

    assert shown.exit_code == 0, shown.output
    row = next(line for line in shown.stdout.splitlines() if line.strip().startswith("cost in USD"))
    assert "unknown" in row
    assert "0.0" in row  # that of the model with a price
    assert f"costs are unknown, as there is no price of {UNPRICED.partition(':')[2]}" in shown.stdout
    assert {each["costUsd"] for each in document["results"]} == {None}
    assert document["statistics"]["models"][0]["costUsd"] is None
    assert {each.cost_usd is None for each in load_run(files["run.jsonl"]).results if each.model == UNPRICED} == {True}
    assert ">unknown<" in files["report.html"].read_text()
    assert 'name="cost_usd" value="unknown"' in files["junit.xml"].read_text()
    assert "unknown" in files["summary.md"].read_text()


def test_a_limit_of_costs_ends_a_run_whose_costs_are_unknown(suite: str, provider: Provider) -> None:
    result = run(suite, "--model", UNPRICED, "--max-cost", "5", "--concurrency", "1", "--json")

    assert result.exit_code == 1
    (document,) = json.loads(result.stdout)["runs"]
    assert len(document["results"]) == 1
    assert "the price of loopback-without-a-price is not known" in document["stopped"]
    assert "PydanticModel(..., price=...)" in document["stopped"]


def test_an_increase_of_unknown_costs_cannot_be_limited(suite: str, provider: Provider) -> None:
    run(suite, "--model", UNPRICED, "--save", "run.jsonl")

    diff = run("diff", "run.jsonl", "run.jsonl", "--max-cost-increase", "10%")
    assert run("diff", "run.jsonl", "run.jsonl").exit_code == 0
    assert diff.exit_code == 1
    assert "its cost in A and B is unknown, and an increase is limited" in " ".join(diff.stdout.split())
