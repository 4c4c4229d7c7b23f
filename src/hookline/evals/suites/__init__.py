"""Suites of tasks from elsewhere, made into agents, tools and checks."""
