"""A steady load at ``divulge serve``: errors, latency, and whether its memory stays flat."""

from __future__ import annotations

import statistics
import threading
import time
from typing import Any

import httpx

from experiments.reliability.processes import memory_mb, served

WARM = 0.2
"""Share of the time after which memory is compared with that at the end."""


def run(seconds: float = 60.0, clients: int = 16, rows: int = 16) -> dict[str, Any]:
    """Requests from so many clients at once for so many seconds."""
    latencies: list[float] = []
    errors: list[str] = []
    question = {"inputs": [{"name": "input", "shape": [rows, 64], "datatype": "FP64", "data": [0.5] * 64 * rows}]}
    with served([64, 32, 10]) as (url, pid):
        end = time.monotonic() + seconds

        def client() -> None:
            with httpx.Client(trust_env=False, timeout=60) as http:
                while time.monotonic() < end:
                    start = time.perf_counter()
                    try:
                        http.post(f"{url}/infer", json=question).raise_for_status()
                    except httpx.HTTPError as error:
                        errors.append(f"{type(error).__name__}: {error}")
                    latencies.append(time.perf_counter() - start)

        threads = [threading.Thread(target=client) for _ in range(clients)]
        for thread in threads:
            thread.start()
        time.sleep(WARM * seconds)
        warm = memory_mb(pid)
        for thread in threads:
            thread.join()
        last = memory_mb(pid)
    cuts = statistics.quantiles(latencies, n=100)
    return {
        "seconds": seconds,
        "clients": clients,
        "requests": len(latencies),
        "rows_per_second": rows * len(latencies) / seconds,
        "errors": len(errors),
        "first_errors": errors[:3],
        "p50_ms": 1000 * cuts[49],
        "p99_ms": 1000 * cuts[98],
        "memory_mb_warm": warm,
        "memory_mb_end": last,
    }
