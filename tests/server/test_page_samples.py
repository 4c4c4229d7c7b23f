"""A dry run begins with a sample that its hook takes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline._checks import tool_matcher
from hookline.registry import POINTS, HookDefinition
from hookline.registry._dry_run import build_sample
from hookline.server.page.hooks._samples import first_sample


def definition(point: str, tool: str | None = None) -> HookDefinition:
    return HookDefinition(id="h", name="h", point=point, handler="deny", tool=tool, tenant_id="acme")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", POINTS)
def test_the_sample_of_each_point_is_one(name: str) -> None:
    fields = first_sample(definition(name))

    assert build_sample(POINTS[name], fields, "acme").subject.tenant_id == "acme"
    assert ("result" in fields) == name.endswith(".after")
    assert not [field for field in fields if "_" in field]


@pytest.mark.parametrize(
    ("glob", "tool"),
    [
        (None, ("local", "search")),
        ("*/bash", ("local", "bash")),
        ("bank/*", ("bank", "search")),
        ("bank/pay", ("bank", "pay")),
        ("*pay", ("local", "pay")),
        ("bank*", ("local", "bank")),
        ("m[cd]p/get_?", ("mcp", "get_x")),
    ],
)
def test_the_sample_is_of_a_tool_that_the_hook_is_for(glob: str | None, tool: tuple[str, str]) -> None:
    fields = first_sample(definition("ToolCall.guard", glob))

    assert (fields["identifier"], fields["apiName"]) == tool


@given(st.text("ab/", min_size=1, max_size=5), st.sampled_from(["*", "?", ""]), st.text("ab", max_size=3))
def test_whatever_the_glob_there_is_a_tool(before: str, wild: str, after: str) -> None:
    glob = f"{before}{wild}{after}"

    fields = first_sample(definition("beforeToolCall", glob))

    matches = tool_matcher(glob)
    assert fields["identifier"]
    assert fields["apiName"]
    named = f"{fields['identifier']}/{fields['apiName']}"
    assert matches is None or matches(named) or named == "local/search"
