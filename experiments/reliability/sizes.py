"""Audits of very large models: within the limit on memory and within 15 % of their time, each in a process of its own.

Descriptions that ask for sizes that nobody has (ONNX, model.json, metadata) are refused before memory is asked for.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

CASES = {
    "150,528 inputs, weights": "MLP([150_528, 16, 10])",
    "150,528 inputs, gradients": "MLP([150_528, 16, 10]); options['access'] = 'gradient'",
    "150,528 inputs, values": "MLP([150_528, 16, 10]); options['access'] = 'value'",
    "150,528 inputs, labels": "MLP([150_528, 16, 10]); options['access'] = 'label'",
    "50 million parameters": "MLP([3072, 5000, 5000, 1800, 10])",
    "50 million parameters, values": "MLP([3072, 5000, 5000, 1800, 10]); options['access'] = 'value'",
    "50,000 outputs": "MLP([100, 20, 50_000])",
}
PROGRAM = """
import json, resource, time, torch, divulge, divulge.auditing
from divulge.models import MLP
options = {{}}
model = {make}
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
start, computed = time.perf_counter(), time.process_time()
report = divulge.audit(model, time={seconds}, memory={memory}, **options)
took, computed = time.perf_counter() - start, time.process_time() - computed
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({{"seconds": took, "processor_seconds": computed, "without_imports": report.seconds,
                  "share_of_time": report.seconds / {seconds},
                  "grew_gib": (peak - before) / 2**20,
                  "faults": [skip.reason for skip in report.skipped if "fault of its own" in skip.reason]}}))
"""


def one(name: str, *, seconds: float = 30.0, memory: float = 4.0) -> dict[str, Any]:
    """The audit of one case: its seconds, its memory, and the faults of its attacks."""
    program = PROGRAM.format(make=CASES[name], seconds=seconds, memory=memory)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    if done.returncode:
        return {"failed": done.stderr.strip().splitlines()[-1:]}
    result: dict[str, Any] = json.loads(done.stdout)
    return result
