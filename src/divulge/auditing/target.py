"""The model under audit: what it is, what the attacker may see of it, and what is known beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from divulge import __version__
from divulge.auditing.kinds import KINDS, Kind
from divulge.auditing.options import AuditOptions
from divulge.auditing.sentences import protections
from divulge.core.storage import digest
from divulge.core.workers import Workers, checkpointed, run
from divulge.oracles.base import ACCESS_LEVELS, Access, Oracle
from divulge.protection.guarantee import Guarantee
from divulge.report.document import SCHEMA_VERSION

Answers = Literal["logits", "probabilities", "scores", "predicted values", "labels"]
"""What a model shows."""
CHECKPOINTS = "kept"
"""Folder, inside the folder of an audit, in which attacks keep what they have computed."""
JUDGING_TIME, FEWEST_JUDGES = 0.05, 50
"""Part of the time of an audit that a slow model may take to judge an attack, and rows that it is asked anyway."""
EXAMPLES = 10_000
"""Rows, about, that say where inputs lie."""
JUDGING_NUMBERS = 1 << 24
"""The most numbers in the rows that judge an attack: an eighth of a gigabyte. Inputs of 16,777 numbers reach it."""


@dataclass(frozen=True, eq=False)
class Target:
    """The model that an audit attacks, and what the auditor knows about it.

    Probes get it as their only argument beside the time. ``oracle(access)`` gives each adversary a fresh oracle with a
    ledger of its own.

    Parameters
    ----------
    origin : str
        How the user named the model: a path or an address; empty for an object.
    access : {"weights", "gradient", "value", "label"}
        What the attacker may see.
    kind : str
        What kind of function the model is, one of ``divulge.auditing.kinds.KINDS``.
    kind_is_known : bool
        Whether the layers of the model say so. Otherwise the kind is a guess from answers, and skips no attack.
    answers : {"logits", "probabilities", "scores", "predicted values", "labels"}
        What the model shows.
    seconds_per_row : float
        How long the model takes to answer one row in a batch.
    input_dim, output_dim : int
        Numbers in one input and in one answer.
    make_oracle : callable
        From an access level to a fresh oracle.
    options : AuditOptions
        The options of the audit.
    model : Module, optional
        The weights, where the auditor holds them.
    estimator : object, optional
        The fitted scikit-learn estimator, where the target is one.
    held : object, optional
        The model as its holder has it, an object or the path of an ONNX file; None behind an address or a guard, and
        where less than the weights is granted.
    inputs, labels : Tensor, optional
        Training inputs [n, d] and their labels [n]: what the insider knows, and what reconstructions are judged by.
    unseen, unseen_labels : Tensor, optional
        Inputs like the training inputs that the model never saw, and their labels: the control.
    mean : Tensor, optional
        What was subtracted from the inputs before training.
    shape : tuple of int, optional
        (channels, height, width) where an input is a picture.
    input_shape : tuple of int
        The shape of one input as the model takes it.
    vocabulary : int, optional
        How many whole numbers the model knows, where it takes the numbers of tokens.
    frame : DataFrame, optional
        The training inputs as their owner has them, where attacks ask in the numeric view of a table.
    columns : tuple of str
        Names of the inputs where they are the columns of a table.
    model_digest : str
        Distinguishes this model from another of the same name. Empty for a remote model.
    oracles : list of Oracle
        Every oracle that was made so far.
    default_name : str
        What the report calls the model unless the options name it.
    guarantee : Guarantee, optional
        What differential privacy guarantees, where the recipe says that the model was trained privately.
    memo : dict
        Results that one probe computed and another one needs.
    """

    origin: str
    access: Access
    kind: Kind
    kind_is_known: bool
    answers: Answers
    seconds_per_row: float
    input_dim: int
    output_dim: int
    make_oracle: Callable[[Access], Oracle]
    options: AuditOptions
    model: nn.Module | None = None
    estimator: Any = None
    held: Any = None
    inputs: Tensor | None = None
    labels: Tensor | None = None
    unseen: Tensor | None = None
    unseen_labels: Tensor | None = None
    mean: Tensor | None = None
    shape: tuple[int, ...] | None = None
    input_shape: tuple[int, ...] = ()
    vocabulary: int | None = None
    frame: Any = None
    columns: tuple[str, ...] = ()
    model_digest: str = ""
    oracles: list[Oracle] = field(default_factory=list)
    default_name: str = ""
    guarantee: Guarantee | None = None
    memo: dict[str, Any] = field(default_factory=dict)

    # -- what the options say -----------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """What the report calls the model."""
        return self.options.name or (Path(self.origin).name if self.origin else self.default_name)

    @property
    def recipe(self) -> Any:
        """How the model was trained, where that is known."""
        return self.options.recipe

    @property
    def seed(self) -> int:
        """The seed of every attack."""
        return self.options.seed

    @property
    def workers(self) -> Workers:
        """Where independent jobs run."""
        return self.options.workers

    @property
    def folder(self) -> Path | None:
        """Where attacks keep what they have computed; None if nothing is kept."""
        return None if self.options.out is None else Path(self.options.out) / CHECKPOINTS

    @property
    def parameters(self) -> int | None:
        """Number of weights, where the auditor holds them."""
        return None if self.model is None else sum(p.numel() for p in self.model.parameters())

    @property
    def is_remote(self) -> bool:
        """Whether the model answers over a network."""
        return self.origin.startswith(("http://", "https://"))

    # -- what an attack needs -----------------------------------------------------------------------------------------

    def oracle(self, access: Access) -> Oracle:
        """A fresh oracle with this access and a ledger of its own."""
        return self.make_oracle(access)

    @property
    def example_inputs(self) -> Tensor | None:
        """Rows that say where inputs lie, so that attacks ask there; None where there is no data."""
        known = self.unseen if self.unseen is not None else self.inputs
        return known[:: max(1, len(known) // EXAMPLES)] if known is not None and len(known) > 1 else None

    def grants(self, access: Access) -> bool:
        """Whether the attacker may see this much."""
        return ACCESS_LEVELS.index(access) <= ACCESS_LEVELS.index(self.access)

    def affordable(self, rows: int) -> int:
        """How many of these rows the auditor may query to judge an attack.

        No more than the budget of an adversary, no more than ``JUDGING_NUMBERS`` numbers in all, and of a slow model no
        more than it answers in ``JUDGING_TIME`` of the audit's time.
        """
        rows = min(rows, max(1, JUDGING_NUMBERS // self.input_dim))
        rows = min(rows, max(FEWEST_JUDGES, int(JUDGING_TIME * self.options.time / max(self.seconds_per_row, 1e-9))))
        return rows if self.options.budget is None else min(rows, self.options.budget)

    def kept(
        self,
        function: Callable[[Any], Any],
        jobs: list[Any],
        name: str,
        *,
        workers: Workers = None,
        final: Callable[[Any], bool] = lambda result: True,
    ) -> list[Any]:
        """The results of the jobs. Final ones are kept in the folder of the audit: a resumed audit repeats none."""
        if self.folder is None:
            return run(function, jobs, workers=workers, stage=name)
        return checkpointed(function, jobs, self.folder / name, workers=workers, stage=name, final=final)

    # -- what the report says of it -----------------------------------------------------------------------------------

    @property
    def description(self) -> str:
        """What the model is, as far as the attacker can see."""
        if self.kind_is_known or self.kind in ("unknown", "constant"):
            return KINDS[self.kind]
        guessed = "a piecewise-linear model of unknown depth" if self.kind == "piecewise linear" else KINDS[self.kind]
        return f"{guessed} by its answers"

    def rows_queried(self) -> int:
        """How many rows the model was really asked. Answers from a journal do not count."""
        return sum(oracle.ledger.total - getattr(oracle, "from_journal", 0) for oracle in self.oracles)

    def fingerprint(self) -> dict[str, Any]:
        """What distinguishes this audit from another: the model, the data, the recipe and the options that count."""
        return {
            **self.as_dict(),
            "model": self.model_digest,
            "data": self._data_digest(),
            "recipe": repr(self.recipe),
            "start": _start_digest(self.options.start),
            "seed": self.seed,
            "budget": self.options.budget,
            "records_shown": self.options.show_records,
            "accepted": [self.options.accept_membership_tpr, self.options.accept_reconstruction],
            "format": SCHEMA_VERSION,
            "version": __version__,
        }

    def digests(self) -> dict[str, str]:
        """SHA-256 digests of the model and the data, as far as the auditor holds them."""
        held = {"model": self.model_digest, "training data": self._data_digest() if self.inputs is not None else ""}
        return {part: value for part, value in held.items() if value}

    def _data_digest(self) -> str:
        parts = (self.inputs, self.labels, self.unseen, self.mean)
        return digest(*(None if part is None else part.to(torch.float64) for part in parts))

    def as_dict(self) -> dict[str, Any]:
        """What the report says about the model."""
        facts: dict[str, Any] = {
            "name": self.name,
            "kind": self.description,
            "answers": self.answers,
            "inputs": self.input_dim if self.shape is None else " x ".join(str(extent) for extent in self.shape),
            "outputs": self.output_dim,
            "access_granted": self.access,
        }
        if self.model is not None:
            facts["parameters"] = self.parameters
        if self.inputs is not None:
            facts["training_records"] = len(self.inputs)
        if self.guarantee is not None:
            facts["differential_privacy"] = protections.privacy_in_words(
                self.guarantee.accounted_epsilon, self.guarantee.delta, self.guarantee.reason
            )
        if self.options.guard:
            facts["guards"] = self.options.guard
        return facts


def drawn_rows(count: int, width: int, vocabulary: int | None, generator: torch.Generator) -> Tensor:
    """Rows to ask where there is no data: from N(0, I), or drawn tokens where the model takes their numbers."""
    if vocabulary is not None:
        return torch.randint(vocabulary, (count, width), generator=generator).to(torch.float64)
    return torch.randn(count, width, generator=generator, dtype=torch.float64)


def _start_digest(start: object) -> str:
    """Of the checkpoint that the model was trained from; empty if there is none."""
    if isinstance(start, nn.Module):
        return digest(*(part for entry in start.state_dict().items() for part in entry))
    return "" if start is None else str(start)
