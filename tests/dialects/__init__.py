"""The dialects of coding agents, without processes and networks."""
