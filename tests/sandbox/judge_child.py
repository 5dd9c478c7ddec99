"""A judge of its own for tests that must end one, or run one as another user or from another install.

Usage: ``python judge_child.py LEVEL hold MARKER`` starts a worker with a stray process and waits to be killed, or
(``leave``) exits without ending it;
``python judge_child.py LEVEL look HIDDEN...`` prints what a worker can do, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]


def main() -> None:
    sys.path.insert(0, str(TESTS))
    from sandbox_tools import run, start

    from grader.sandbox import rundir
    from grader.sandbox.launch import choose_isolation

    level, task, *rest = sys.argv[1:]
    isolation = choose_isolation(level, [Path(path) for path in rest] if task == "look" else [])
    if task in ("hold", "leave"):
        worker = start(isolation)
        stray = f"""
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execv('/bin/sh', ['sh', '-c', 'sleep 300; : {rest[0]}'])
    os._exit(0)
"""
        run(worker, stray)
        groups = [str(path) for path in worker._group.folders.values()] if worker._group else []
        print(json.dumps({"run": str(rundir.current()), "groups": groups}), flush=True)
        if task == "leave":
            sys.exit(0)
        time.sleep(300)
    with start(isolation, limits={"processes": 20, "memory_mib": 256}) as worker:
        probes = {
            "uid": "import os\nresult = os.getuid()",
            "hidden": f"result = [open(p).read() for p in {rest!r}]",
            "grader": "import grader.sandbox.launch",
            "numpy": "import numpy\nresult = int(numpy.arange(4).sum())",
            "forks": "import os, time\nn = 0\ntry:\n    while n < 200:\n        if os.fork() == 0: time.sleep(20)\n"
            "        n += 1\nexcept OSError: pass\nresult = n",
            "network": "import socket\nsocket.socket(socket.AF_INET)",
            "setuid": "import os\nos.setuid(12345)",
            "judge": f"open('/proc/{os.getpid()}/environ')",
        }
        answers = {name: run(worker, text) for name, text in probes.items()}
    print(json.dumps({"level": isolation.level, "reason": isolation.reason, "limits": isolation.limits, **answers}))


if __name__ == "__main__":
    main()
