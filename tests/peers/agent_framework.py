"""Microsoft Agent Framework: the tests of its repository that run agents; its distributions hold none."""

from __future__ import annotations

from .frame import Peer

PEER = Peer(
    name="agent_framework",
    extra="agent-framework",
    distribution="agent-framework-core",
    needs=["pytest-asyncio", "pytest-retry", "opentelemetry-sdk"],
    # Not the folder above: the installed framework is to be tested, not the one beside the tests.
    root="python/packages/core/tests",
    options=["--import-mode=append"],
    tests=[
        "core/test_agents.py",
        "core/test_as_tool_kwargs_propagation.py",
        "core/test_compaction.py",
        "core/test_function_invocation_logic.py",
        "core/test_harness_agent.py",
        "core/test_harness_background_agents.py",
        "core/test_harness_loop.py",
        "core/test_harness_tool_approval.py",
        "core/test_middleware.py",
        "core/test_middleware_context_result.py",
        "core/test_middleware_with_agent.py",
        "core/test_observability.py",
        "core/test_sessions.py",
    ],
    checkout=True,
)
