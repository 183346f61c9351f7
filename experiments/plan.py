"""What a run was asked for: which parts, how many seeds and until when. It prints every number as it comes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, TypeVar

from divulge.core import workers as parallel
from divulge.core.errors import InvalidInput
from divulge.core.json import dumps
from divulge.core.workers import Workers

Job = TypeVar("Job")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Plan:
    """One call of ``divulge reproduce`` or ``python -m experiments``."""

    out: Path
    full: bool = False
    seed: int = 0
    workers: Workers = None
    only: tuple[str, ...] = ()
    """Parts to measure, as names, parts of names or patterns; all of them by default."""
    seeds: int | None = None
    """Networks, sets or targets of each part; the experiment's own number by default."""
    seconds: float | None = None
    """No part is begun after so many seconds; the one under way is finished."""
    loud: bool = True
    """Whether numbers are printed as they come."""
    began: float = field(default_factory=time.perf_counter)
    left: list[str] = field(default_factory=list)
    """Parts that the time did not suffice for."""

    def wants(self, part: str) -> bool:
        """Whether this part was asked for."""
        name = part.lower()
        return not self.only or any(word.lower() in name or fnmatch(name, word.lower()) for word in self.only)

    def check(self, parts: Sequence[str]) -> None:
        """Refuse a run of which no part was asked for."""
        if not any(self.wants(part) for part in parts):
            listed = "; ".join(parts)
            raise InvalidInput(f"No part is called {' or '.join(map(repr, self.only))}; the parts are: {listed}.")

    def seeds_of(self, default: int) -> range:
        """The seeds of a part that has ``default`` of them."""
        return range(self.seed, self.seed + (self.seeds or default))

    def begins(self, part: str) -> bool:
        """Whether to begin this part now: it was asked for and there is time."""
        if not self.wants(part):
            return False
        if self.seconds is not None and time.perf_counter() - self.began > self.seconds:
            self.left.append(part)
            return False
        return True

    def run(
        self,
        function: Callable[[Job], Result],
        jobs: Sequence[Job],
        name: Callable[[Job], str],
        keep: Callable[[Job, Result], None],
    ) -> None:
        """``function`` of each job that was asked for, on the workers; ``keep`` gets each result as it comes."""
        wanted = [job for job in jobs if self.wants(name(job))]
        at_once = len(wanted) if self.seconds is None else (self.workers if isinstance(self.workers, int) else 1)
        while wanted:
            wave, wanted = wanted[: max(at_once, 1)], wanted[max(at_once, 1) :]
            wave = [job for job in wave if self.begins(name(job))]
            parallel.run(
                function, wave, workers=self.workers, stage=self.out.name,
                on_done=lambda place, result, wave=wave: keep(wave[place], result),  # type: ignore[misc]
            )  # fmt: skip

    def measure(self, name: str, parts: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
        """Each part that was asked for, printed as it comes and written to NAME.json with what is there already."""
        self.check(list(parts))
        path = self.out / f"{name}.json"
        results: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
        for part, work in parts.items():
            if self.begins(part):
                results[part] = work()
                self.show(part, results[part])
                path.write_text(dumps(results) + "\n")
        return results

    def show(self, part: str, row: Any) -> None:
        """Print one measured row."""
        if self.loud:
            print(f"{part}: {brief(row)}", flush=True)


def brief(value: Any, *, depth: int = 2) -> str:
    """A row of numbers on one line; what is long or deep is counted, not printed."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        if not depth:
            return f"{len(value)} entries"
        return ", ".join(f"{key} {brief(item, depth=depth - 1)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        short = len(value) <= 6 and not any(isinstance(item, dict | list | tuple) for item in value)
        return "[" + ", ".join(brief(item) for item in value) + "]" if short else f"{len(value)} entries"
    return str(value)
