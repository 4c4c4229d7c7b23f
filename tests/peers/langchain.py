"""LangChain: the tests of its source distribution that run agents."""

from __future__ import annotations

from .frame import Peer

PEER = Peer(
    name="langchain",
    extra="langchain",
    distribution="langchain",
    needs=[
        "pytest>=9.0.3",
        "pytest-asyncio>=1.3.0",
        "pytest-socket>=0.6.0",
        "pytest-mock",
        "syrupy>=5.0.0",
        "toml>=0.10.2",
        "blockbuster>=1.5.26",
        "langchain-tests>=1.1.9",
        "langchain-openai",
    ],
    tests=["tests/unit_tests/agents"],
)
