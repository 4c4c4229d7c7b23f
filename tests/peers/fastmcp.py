"""FastMCP: the tests of its source distribution in which servers are called."""

from __future__ import annotations

from .frame import Peer

PEER = Peer(
    name="fastmcp",
    extra="fastmcp",
    distribution="fastmcp",
    needs=[
        "fastmcp[tasks,code-mode]",
        "dirty-equals",
        "inline-snapshot[dirty-equals]",
        "fastapi",
        "psutil",
        "pytest-asyncio",
        "pytest-env",
        "pytest-retry",
        "pytest-xdist",
        "opentelemetry-sdk",
    ],
    tests=[
        "tests/client/client",
        "tests/client/sampling",
        "tests/client/test_elicitation.py",
        "tests/client/test_logs.py",
        "tests/client/test_progress.py",
        "tests/client/test_result_hydration.py",
        "tests/client/test_roots.py",
        "tests/client/test_sampling.py",
        "tests/server/middleware",
        "tests/server/mount",
        "tests/server/providers",
        "tests/server/test_context.py",
        "tests/server/test_dependencies.py",
        "tests/server/test_dependencies_advanced.py",
        "tests/server/test_input_validation.py",
        "tests/server/test_server.py",
        "tests/server/test_sessions.py",
        "tests/server/test_shared_context.py",
        "tests/server/test_tool_annotations.py",
        "tests/server/test_tool_transformation.py",
        "tests/server/transforms",
        "tests/tools",
    ],
    left_out=["tests/client/sampling/handlers"],
    options=["-m", "not integration and not client_process and not subprocess_heavy and not conformance"],
)
