"""Adapters for agent frameworks, model providers, MCP servers and policies; each has an extra of its own name."""
