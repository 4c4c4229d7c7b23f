"""The installed command: `hook.py` is what coding agents run, `client.py` what it does."""
