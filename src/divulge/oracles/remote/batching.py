"""Asking many rows of a remote model in batches, a few requests at a time, without losing answers when one fails.

With a journal each distinct row is asked once. ``BatchedClient`` knows nothing of HTTP: the caller gives it a function
that answers one batch. When that function fails half-way, the error carries ``rows_answered``, which the ledger keeps,
and the answers themselves in ``partial``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass

import numpy as np

from divulge.core.errors import DivulgeError, JournalMismatch
from divulge.oracles.ledger import Kind
from divulge.oracles.remote.journal import Journal, keys_of
from divulge.oracles.remote.signature import Array

SendBatch = Callable[[Kind, Array, threading.Event], Array]  # the event is set once nobody waits for the answer


@dataclass(frozen=True)
class ReceivedRows:
    """Answers that arrived before a query failed, and the positions in the query that they belong to."""

    index: Array
    answers: Array


class BatchedClient:
    """Spreads a query over batches and threads, through a journal if there is one."""

    def __init__(self, ask: SendBatch, *, concurrency: int, journal: Journal | None = None) -> None:
        self.journal = journal
        self.from_journal = 0  # rows answered without a request
        self._ask = ask
        self._pool = ThreadPoolExecutor(concurrency, thread_name_prefix="divulge-ask")
        self._claims = threading.Condition()
        self._claimed: set[bytes] = set()  # keys of the rows that some thread is asking

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
        if self.journal is not None:
            self.journal.close()

    def answers(self, kind: Kind, rows: Array, batch: int, dtype: np.dtype[np.generic]) -> Array:
        """An answer for every row: from the journal where it has one, from the server where it has not."""
        if self.journal is None:
            return self.fresh(kind, rows, batch)
        keys = keys_of(kind, rows)
        first: dict[bytes, int] = {}
        for place, key in enumerate(keys):
            first.setdefault(key, place)
        known: dict[bytes, bytes] = {}
        asked = 0
        try:
            while missing := [key for key in first if key not in known]:
                mine = self._claim(missing)
                try:
                    known.update(self.journal.find(mine))
                    rest = [key for key in mine if key not in known]
                    asked += len(rest)
                    if rest:
                        self._ask_missing(known, kind, rows[[first[key] for key in rest]], batch, rest)
                finally:
                    self._release(mine)
        except BaseException as error:
            index = [place for place, key in enumerate(keys) if key in known]
            _attach_answers(
                error, np.array(index, dtype=np.int64), self._stack([known[keys[place]] for place in index], dtype)
            )
            raise
        with self._claims:
            self.from_journal += len(keys) - asked
        return self._stack([known[key] for key in keys], dtype)

    def _ask_missing(self, known: dict[bytes, bytes], kind: Kind, rows: Array, batch: int, keys: list[bytes]) -> None:
        """Ask the server and add the answers to ``known``, even those that came before a failure."""
        try:
            answers = self.fresh(kind, rows, batch, keys)
        except BaseException as error:
            received = getattr(error, "partial", None)
            if isinstance(received, ReceivedRows):
                known.update((keys[i], row.tobytes()) for i, row in zip(received.index, received.answers, strict=True))
            raise
        width = answers.shape[1] * answers.itemsize
        blob = answers.tobytes()
        known.update((key, blob[row * width : (row + 1) * width]) for row, key in enumerate(keys))

    def fresh(self, kind: Kind, rows: Array, batch: int, keys: list[bytes] | None = None) -> Array:
        """The server's answer for every row, recorded under ``keys`` batch by batch before the caller sees it."""
        starts = range(0, len(rows), batch)
        received: dict[int, Array] = {}
        stop = threading.Event()

        def one(start: int) -> None:
            received[start] = self._ask(kind, rows[start : start + batch], stop)
            if self.journal is not None and keys is not None:
                self.journal.write(keys[start : start + batch], received[start])

        try:
            if len(starts) == 1:
                one(0)
            else:
                self._spread(one, starts, stop)
        except BaseException as error:
            if received:
                got = sorted(received.items())
                index = [np.arange(start, start + len(answer)) for start, answer in got]
                _attach_answers(error, np.concatenate(index), np.concatenate([answer for _, answer in got]))
            raise
        return received[0] if len(starts) == 1 else np.concatenate([received[start] for start in starts])

    def _spread(self, one: Callable[[int], None], starts: range, stop: threading.Event) -> None:
        futures = [self._pool.submit(one, start) for start in starts]
        try:
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            for future in done:
                future.result()
        finally:  # after a failure, wait for the requests in flight and send no more
            for future in futures:
                future.cancel()
            stop.set()
            wait(futures)

    def _claim(self, missing: list[bytes]) -> list[bytes]:
        """Claim the missing rows that no other thread is asking; wait while there are none."""
        with self._claims:
            while not (mine := [key for key in missing if key not in self._claimed]):
                self._claims.wait()
            self._claimed.update(mine)
        return mine

    def _release(self, mine: list[bytes]) -> None:
        with self._claims:
            self._claimed.difference_update(mine)
            self._claims.notify_all()

    def _stack(self, answers: list[bytes], dtype: np.dtype[np.generic]) -> Array:
        sizes = {len(answer) for answer in answers}
        if len(sizes) > 1 or any(size % dtype.itemsize for size in sizes):
            where = self.journal.path if self.journal is not None else "The journal"
            raise JournalMismatch(f"{where} holds answers of different sizes; it is damaged. Start a new journal.")
        flat = np.frombuffer(bytearray().join(answers), dtype=dtype)
        return flat.reshape(len(answers), flat.size // max(1, len(answers)))


def _attach_answers(error: BaseException, index: Array, answers: Array) -> None:
    error.rows_answered = len(index)  # type: ignore[attr-defined]
    if isinstance(error, DivulgeError) and len(index):
        error.partial = ReceivedRows(index, answers)
