"""The real coding agents, driven by a scripted model on loopback: `make hosts`."""
