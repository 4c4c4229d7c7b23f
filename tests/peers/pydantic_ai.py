"""Pydantic AI: the tests of its repository that run agents."""

from __future__ import annotations

from .frame import Peer

PEER = Peer(
    name="pydantic_ai",
    extra="pydantic-ai",
    distribution="pydantic-ai-slim",
    needs=[
        "pytest>=9.0.3",
        "pytest-mock",
        "pytest-recording",
        "pytest-examples",
        "dirty-equals",
        "inline-snapshot>=0.32.5",
        "anyio",
        "httpx",
        "genai-prices",
        "devtools",
    ],
    tests=[
        "tests/test_agent.py",
        "tests/test_agent_output_schemas.py",
        "tests/test_capabilities.py",
        "tests/test_capability_process_event_stream.py",
        "tests/test_capability_stream_teardown.py",
        "tests/test_concurrency.py",
        "tests/test_deps.py",
        "tests/test_history_processor.py",
        "tests/test_include_binary_content.py",
        "tests/test_native_output_schema.py",
        "tests/test_nested_sync_agent.py",
        "tests/test_run_cancellation.py",
        "tests/test_run_context_usage_limits.py",
        "tests/test_streaming.py",
        "tests/test_streaming_errors.py",
        "tests/test_sync_stream_loop_affinity.py",
        "tests/test_tool_availability.py",
        "tests/test_tool_availability_portability.py",
        "tests/test_tool_search.py",
        "tests/test_tools.py",
        "tests/test_toolsets.py",
        "tests/test_transcript_repair.py",
        "tests/test_usage_limits.py",
        "tests/test_validation_context.py",
    ],
    options=["-W", "default"],
    environ={"BLOCKBUSTER_ENABLED": "false"},  # it looks into packages of the repository that have no release
    checkout=True,
)
