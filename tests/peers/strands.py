"""Strands: the tests of its source distribution that run agents, graphs and swarms."""

from __future__ import annotations

from .frame import Peer

PEER = Peer(
    name="strands",
    extra="strands",
    distribution="strands-agents",
    needs=["pytest>=9,<10", "pytest-asyncio<1.5", "moto>=5.1,<6", "tenacity"],
    tests=[
        "tests/strands/agent",
        "tests/strands/background_tasks",
        "tests/strands/event_loop",
        "tests/strands/hooks",
        "tests/strands/interventions",
        "tests/strands/middleware",
        "tests/strands/multiagent",
        "tests/strands/plugins",
        "tests/strands/test_interrupt.py",
        "tests/strands/test_tracking_id_history_invariant.py",
        "tests/strands/tools/executors",
        "tests/strands/vended_interventions/test_hitl.py",
    ],
    left_out=["tests/strands/agent/test_a2a_agent.py", "tests/strands/multiagent/a2a"],
)
