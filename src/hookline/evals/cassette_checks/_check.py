"""Check the cassettes of suites: which tools have changed since they were recorded, which recordings are never used."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AsyncExitStack
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, Protocol, cast

import msgspec

from hookline.calls import ToolSpec
from hookline.errors import HookUsageError, message_of
from hookline.evals.cassette_checks._live import LiveCheck, RepeatedCall, open_agent, repeat_calls, sample_calls
from hookline.evals.cassettes import Cassette, RecordedCall, RecordedTool, schema_changes
from hookline.evals.errors import CassetteFolderError
from hookline.evals.mocking import ToolMocks
from hookline.evals.running import Case, cassette_file
from hookline.runtime import Agent

__all__ = ["CassettesReport", "CheckedCassette", "CheckedTool", "check_cassettes"]

ToolStatus = Literal["same", "changed", "gone", "unknown"]


class CheckedTool(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The recordings of one tool in a cassette, compared with the tool of today.

    Attributes:
        tool: The tool, as `toolset/tool_name`.
        agent: The sub-agent that called it; empty for the main agent.
        status: `"same"`: the schema is that of the recordings. `"changed"`: it is another one. `"gone"`: the agent has
            no such tool. `"unknown"`: the schema was not recorded, or the tool is not known.
        why: What has changed, or why that is not known.
        recordings: How many recordings there are.
        recorded: The date of the latest of them, in UTC; empty if it was not recorded.
    """

    tool: str
    agent: str = ""
    status: ToolStatus
    why: str = ""
    recordings: int
    recorded: str = ""


class CheckedCassette(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The cassette of one task, checked.

    Attributes:
        task: The task with its suite.
        path: The file.
        tools: Its tools.
        replayed: Whether the task was replayed to see which recordings it uses.
        why_not_replayed: Why not; empty if it was.
        unused: The recordings that the replay did not use, one line each.
        problem: Why the tools could not be opened; empty if they were, or need not be.
        repeated: The calls that were made again.
    """

    task: str
    path: str
    tools: list[CheckedTool]
    replayed: bool = False
    why_not_replayed: str = ""
    unused: list[str] = []
    problem: str = ""
    repeated: list[RepeatedCall] = []

    @property
    def stale(self) -> list[CheckedTool]:
        """The tools that have changed or are gone."""
        return [tool for tool in self.tools if tool.status in ("changed", "gone")]


class CassettesReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The cassettes of suites, checked.

    Attributes:
        cassettes: One per task that has a cassette, in the order of the tasks.
        without_cassette: Names of the tasks that have none.
        orphans: Files in the folder that belong to no task of the suites.
        live: Whether calls were made again.
    """

    cassettes: list[CheckedCassette]
    without_cassette: list[str] = []
    orphans: list[str] = []
    live: bool = False

    @property
    def stale(self) -> list[tuple[CheckedCassette, CheckedTool]]:
        """The tools that have changed or are gone, with their cassettes."""
        return [(cassette, tool) for cassette in self.cassettes for tool in cassette.stale]

    @property
    def repeated(self) -> list[tuple[CheckedCassette, RepeatedCall]]:
        """The calls that were made again, with their cassettes."""
        return [(cassette, call) for cassette in self.cassettes for call in cassette.repeated]

    @property
    def judged(self) -> bool:
        """Whether anything could be compared: a schema, or an answer."""
        compared = any(tool.status != "unknown" for cassette in self.cassettes for tool in cassette.tools)
        return compared or any(call.status != "skipped" for _, call in self.repeated)

    def is_ok(self, *, values: bool = False) -> bool:
        """Whether no tool has changed, and every call that was made again got an answer of the same shape.

        Args:
            values: Whether the values of the answers must be the same too.
        """
        return not (
            self.stale
            or any(cassette.problem for cassette in self.cassettes)
            or any(
                call.status == "failed" or call.shape_changed or (values and call.status == "changed")
                for _, call in self.repeated
            )
        )


class HasAgents(Protocol):
    """A suite that can say which agent a task runs. Without it only `tool_specs` are compared."""

    def agent_of(self, task_id: str) -> Agent:
        """Return the agent of a task, with tools of its own."""
        ...


async def check_cassettes(
    cases: Sequence[Case],
    *,
    cassettes: str | Path | None = None,
    live: LiveCheck | None = None,
    orphans: bool = True,
) -> CassettesReport:
    """Check whether the cassettes of tasks are still of the tools that their agents have.

    No tool runs, unless `live` is given. Tasks with a scripted model are replayed, without their checks, to see which
    recordings they use.

    Args:
        cases: The tasks.
        cassettes: The folder of the cassette files; without it, each task's own file.
        live: Which calls are made again with real tools. The sources of the agents, such as MCP servers, are opened.
        orphans: Whether to list the files of the folder that belong to none of the tasks.

    Raises:
        CassetteFolderError: If there is no such folder, or none is given and no task names a cassette.
        CassetteError: If a cassette cannot be read.
        HookUsageError: If `live` confirms a tool that has no recording.
    """
    folder = None if cassettes is None else Path(cassettes)
    if folder is not None and not folder.is_dir():
        raise CassetteFolderError("check", f"there is no folder {folder}")
    paths = [_path(case, folder) for case in cases]
    if folder is None and not any(paths):
        raise CassetteFolderError("check", "none is given, and no task names a cassette of its own")
    chosen = _choose_calls(cases, paths, live) if live is not None else set()
    checked: list[CheckedCassette] = []
    without: list[str] = []
    for place, (case, path) in enumerate(zip(cases, paths, strict=True)):
        if path is None or not path.exists():
            without.append(f"{case[0].name}/{case[1]}")
        else:
            indices = [index for at, index in sorted(chosen) if at == place]
            checked.append(await _check_case(case, path, live, indices))
    return CassettesReport(
        cassettes=checked,
        without_cassette=without,
        orphans=_orphans(paths) if orphans and folder is not None else [],
        live=live is not None,
    )


def _path(case: Case, folder: Path | None) -> Path | None:
    if folder is not None:
        return cassette_file(folder, case)
    suite, task_id = case
    own: Path | None = suite.cassette(task_id) if hasattr(suite, "cassette") else None
    return own


def _load(case: Case, path: Path) -> Cassette:
    options: dict[str, Any] = dict(getattr(case[0], "cassette_options", {}))
    return Cassette(f"{case[0].name}/{case[1]}", path=path, mode="none", **options)


def _choose_calls(cases: Sequence[Case], paths: Sequence[Path | None], live: LiveCheck) -> set[tuple[int, int]]:
    """Choose the recordings to make again, each by the place of its case and its own place in the cassette."""
    counts: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for place, (case, path) in enumerate(zip(cases, paths, strict=True)):
        if path is not None and path.exists():
            for index, recording in enumerate(_load(case, path).recordings):
                counts.setdefault((recording.agent, recording.tool), []).append((place, index))
    known = {tool for _, tool in counts}
    for tool in live.confirmed:
        if tool not in known and tool not in {each.rpartition("/")[2] for each in known}:
            near = get_close_matches(tool, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; there are recordings of {', '.join(sorted(known))}."
            raise HookUsageError(f"There is no recording of a tool {tool!r}{hint}")
    return sample_calls(counts, live)


async def _check_case(case: Case, path: Path, live: LiveCheck | None, indices: Sequence[int]) -> CheckedCassette:
    suite, task_id = case
    cassette = _load(case, path)
    checked = CheckedCassette(
        task=f"{suite.name}/{task_id}", path=str(path), tools=_check_tools(case, cassette, opened=None)
    )
    if live is not None and hasattr(suite, "agent_of"):
        held = cassette.recordings
        recordings = [held[index] for index in indices]
        checked = await _check_live(case, checked, cassette, recordings, live)
    elif live is not None:
        checked = msgspec.structs.replace(checked, problem="its suite does not say which agent a task has")
    why_not = _why_not_replayed(case, cassette)
    if why_not is not None:
        return msgspec.structs.replace(checked, why_not_replayed=why_not)
    try:
        unused = await _replay(case, _load(case, path))
    except Exception as error:  # of the suite, which may do anything
        why_not = f"running it fails with {type(error).__name__}: {message_of(error)}"
        return msgspec.structs.replace(checked, why_not_replayed=why_not)
    return msgspec.structs.replace(checked, replayed=True, unused=unused)


async def _check_live(
    case: Case, checked: CheckedCassette, cassette: Cassette, recordings: Sequence[RecordedCall], live: LiveCheck
) -> CheckedCassette:
    """Compare the tools with those of open sources, and make calls again."""
    root = cast("HasAgents", case[0]).agent_of(case[1])
    repeated: list[RepeatedCall] = []
    opened: dict[str, Agent] = {}
    async with AsyncExitStack() as stack:
        for name in dict.fromkeys(recording.agent for recording in cassette.recordings):
            agent = _find_agent(root, name)
            if agent is None:
                continue
            try:
                opened[name] = await open_agent(agent, stack)
            except Exception as error:
                problem = f"its tools cannot be opened: {type(error).__name__}: {message_of(error)}"
                return msgspec.structs.replace(checked, problem=problem)
            wanted = [recording for recording in recordings if recording.agent == name]
            repeated += await repeat_calls(opened[name], wanted, cassette, live)
    return msgspec.structs.replace(checked, tools=_check_tools(case, cassette, opened=opened), repeated=repeated)


def _check_tools(case: Case, cassette: Cassette, *, opened: dict[str, Agent] | None) -> list[CheckedTool]:
    """Compare the tools of a cassette with those of the agents, or of agents whose sources are open."""
    suite, task_id = case
    root: Agent | None = suite.agent_of(task_id) if hasattr(suite, "agent_of") else None
    recorded = {tool.key: tool for tool in cassette.tools}
    counts = Counter((recording.agent, recording.tool) for recording in cassette.recordings)
    found: list[CheckedTool] = []
    for (name, tool), recordings in sorted(counts.items()):
        agent = opened.get(name) if opened is not None else _find_agent(root, name) if root is not None else None
        specs: Sequence[ToolSpec] = agent.specs if agent is not None else ()
        if root is None and not name:
            specs = list(getattr(suite, "tool_specs", ()))
        known = recorded.get((name, tool))
        status, why = _compare_tool(tool, name, known, specs, agent, asked=root is not None or not name)
        found.append(
            CheckedTool(
                tool=tool,
                agent=name,
                status=status,
                why=why,
                recordings=recordings,
                recorded=known.recorded if known is not None else "",
            )
        )
    return found


def _compare_tool(
    tool: str,
    agent_id: str,
    recorded: RecordedTool | None,
    specs: Sequence[ToolSpec],
    agent: Agent | None,
    *,
    asked: bool,
) -> tuple[ToolStatus, str]:
    spec = next((each for each in specs if f"{each.toolset}/{each.name}" == tool), None)
    if spec is None:
        if not asked:
            return "unknown", "its suite does not say which sub-agents a task has"
        if agent is None and agent_id:
            return "gone", f"there is no sub-agent {agent_id!r}"
        toolset = tool.rpartition("/")[0]
        if agent is not None and any(source.toolset == toolset for source in agent.sources):
            return "unknown", f"{toolset!r} lists its tools when it is open, which --live does"
        near = get_close_matches(tool, [f"{each.toolset}/{each.name}" for each in specs], n=1)
        return "gone", f"the agent has no such tool{f'; is it {near[0]} now?' if near else ''}"
    if recorded is None:
        return "unknown", "its schema was not recorded; record it again"
    present = RecordedTool.of(spec, agent_id)
    changes = schema_changes(recorded, present)
    if not changes:
        other = recorded.version != present.version
        return "same", f"its version was {recorded.version!r} and is {present.version!r}" if other else ""
    return "changed", ", ".join(changes)


def _find_agent(root: Agent, name: str) -> Agent | None:
    """Find a sub-agent by its id, at any depth; the agent itself if the name is empty."""
    if not name:
        return root
    return next((agent for agent in _sub_agents(root) if agent.id == name), None)


def _sub_agents(agent: Agent) -> Iterator[Agent]:
    for each in agent.sub_agents:
        yield each
        yield from _sub_agents(each)


def _why_not_replayed(case: Case, cassette: Cassette) -> str | None:
    suite, task_id = case
    if not hasattr(suite, "is_scripted") or not suite.is_scripted(task_id):
        return "its model is not scripted, and none is asked here"
    agent = suite.agent_of(task_id) if hasattr(suite, "agent_of") else None
    if agent is not None and (agent.sources or any(each.sources for each in _sub_agents(agent))):
        return "its agent opens sources of tools, and none is opened here"
    return None


async def _replay(case: Case, cassette: Cassette) -> list[str]:
    """Replay a task without its checks, which may ask a model, and list the recordings that were not used."""
    suite, task_id = case
    if hasattr(suite, "without_checks"):
        suite = suite.without_checks()
    mocks = ToolMocks(strict=True, case=f"{suite.name}/{task_id}", cassette=cassette)
    if hasattr(suite, "arrange"):
        suite.arrange(task_id, mocks)
    await suite.run_task(task_id, hooks=[mocks], forbid_tools=True)
    return cassette.unused()


def _orphans(paths: Iterable[Path | None]) -> list[str]:
    """List the cassettes in the folders of the suites that belong to no task.

    Tapes, and cassettes of further attempts of a task, are not among them.
    """
    used = {path for path in paths if path is not None}
    folders = {path.parent for path in used}
    return sorted(
        str(path)
        for each in folders
        for path in each.glob("*.yaml")
        if path not in used and not path.name.endswith(".tape.yaml") and _without_attempt(path) not in used
    )


def _without_attempt(path: Path) -> Path:
    return path.with_name(re.sub(r"\.attempt-\d+(?=\.yaml$)", "", path.name))
