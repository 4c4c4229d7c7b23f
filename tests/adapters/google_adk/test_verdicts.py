"""A policy leads to the same verdicts in every way to run an agent of Google ADK."""

from __future__ import annotations

import pytest

from hookline.evals.verdicts import Decision, Path

from ..verdicts import check_page, check_verdict, each_verdict
from .paths import PATHS

pytestmark = [
    pytest.mark.filterwarnings("ignore:The `plugins` argument is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings(r"ignore:\[EXPERIMENTAL\]:UserWarning"),
    pytest.mark.filterwarnings(r"ignore:.*Agent is deprecated:DeprecationWarning"),
]


@each_verdict(PATHS)
async def test_a_policy_leads_to_its_verdict(path: Path, decision: Decision) -> None:
    await check_verdict(decision, path)


def test_the_page_says_what_the_paths_lead_to() -> None:
    check_page("google_adk", PATHS)
