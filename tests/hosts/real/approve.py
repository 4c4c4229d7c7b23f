"""Approve the first call that waits in a store, as a person would: with the command line."""

import json
import subprocess
import sys
import time

store = sys.argv[1]
hookline = [sys.executable, "-c", "from hookline.cli import main; main()"]
for _ in range(100):
    ran = subprocess.run([*hookline, "approvals", "list", "--json", "--store", store], capture_output=True, text=True)
    waiting = [json.loads(line) for line in ran.stdout.splitlines()]
    if waiting:
        words = ["approvals", "approve", waiting[0]["operationId"], waiting[0]["toolCallId"], "--store", store]
        subprocess.run([*hookline, *words], check=True)
        break
    time.sleep(0.1)
