"""A policy leads to the same verdicts in every coding agent, as far as recorded frames and answers can show it."""

from __future__ import annotations

from hookline.evals.verdicts import Decision, Path
from tests.adapters.verdicts import check_page, check_verdict, each_verdict

from .paths import PATHS


@each_verdict(PATHS)
async def test_a_policy_leads_to_its_verdict(path: Path, decision: Decision) -> None:
    await check_verdict(decision, path)


def test_the_page_says_what_the_paths_lead_to() -> None:
    check_page("coding_agents", PATHS)
