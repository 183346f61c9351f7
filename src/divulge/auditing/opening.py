"""From what the caller hands in to a :class:`Target`: the model is opened once, and the data is checked against it."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from divulge.auditing.kinds import LINES, POINTS, SCALES, Kind, kind_by_asking, kind_of_module
from divulge.auditing.options import AuditOptions
from divulge.auditing.oracle_maker import OracleMaker, local_options
from divulge.auditing.tables import with_view
from divulge.auditing.target import Answers, Target, drawn_rows
from divulge.core.errors import DivulgeError, InvalidInput, TargetError, UnsupportedModel
from divulge.core.images import SMALLEST, declared_picture, picture_shape
from divulge.core.storage import digest
from divulge.core.validation import checked_rows
from divulge.datasets.provenance import ModelData
from divulge.oracles import Access, Oracle, load_model, oracle
from divulge.oracles.adapt import adapted
from divulge.oracles.base import check_access
from divulge.oracles.factory import is_address, is_plain_function
from divulge.oracles.local.estimator_scores import fitted
from divulge.oracles.local.hugging_face import text_length
from divulge.oracles.local.input_shape import candidate_shapes
from divulge.oracles.local.named_inputs import vocabulary_of
from divulge.oracles.local.sklearn_estimator import is_estimator
from divulge.oracles.outputs import OUTPUTS
from divulge.protection.guarantee import Guarantee, guarantee_of

HALF = 0.5
"""Where a share decides."""
_FEW = 8
"""Rows that show what the answers are."""
_SOME = 10_000
"""Rows of the data, at most, that show where inputs lie."""
_BATCH = 64
"""Rows that take about as long as a few, in a batch."""
_OF_THE_TIME = 0.1
"""Part of the audit's time that may go into finding out what kind of model it is."""
_ASSUMED_PACE = 1e-4
"""Seconds to answer a row, where that was not measured."""


def open_target(model: Any, training_data: Any, options: AuditOptions) -> Target:
    """Open the model, find out what kind it is, and check that the data fits it."""
    if options.access is not None:
        check_access(options.access)
    remote = is_address(model)
    if options.access == "weights" and (remote or options.guard):
        raise InvalidInput("Weights cannot be granted through an address or a guard; choose value, gradient or label.")
    origin = str(model) if isinstance(model, str | Path) else ""
    source = adapted(_loaded(model, options) if origin and not remote else model)
    frame = _frame_of(training_data)
    training_data, options = with_view(source, training_data, options)
    options = _with_shape(source, training_data, options)
    oracles: list[Oracle] = []
    named = options.output not in (None, *OUTPUTS) and isinstance(source, nn.Module)
    asked = replace(options, output=None) if named and origin.lower().endswith(".onnx") else options
    make = OracleMaker(source, asked, oracles, remote=remote)  # a module is read up to the output that was named
    readable = not (remote or options.guard or isinstance(source, str | Path)) and options.access in ("weights", None)
    module = _weights_of(source, options) if readable else None
    access = options.access or _widest(make, options.guard, local=readable, weights=module is not None)
    first = make("gradient" if access == "weights" else access)
    if isinstance(training_data, ModelData):
        training_data = training_data.numbered_for(first.output_dim, first.class_names)
    data = _data(training_data, options, first.input_dim, tuple(first.input_shape))
    answers, pace = _answers(source, make, access, data)
    vocabulary = vocabulary_of(source) if isinstance(source, nn.Module) else first.vocabulary
    kind: Kind = "unknown"  # of what takes tokens: between two of them there is nothing to ask
    known = False
    if vocabulary is None:
        kind, known = _kind(module, make, access, data.some_rows, options, pace)
    return Target(
        origin=origin,
        access=access,
        kind=kind,
        kind_is_known=known,
        answers=answers,
        seconds_per_row=pace,
        input_dim=first.input_dim,
        input_shape=tuple(first.input_shape),
        vocabulary=vocabulary,
        output_dim=first.output_dim,
        make_oracle=make,
        options=options,
        model=module,
        estimator=_estimator(source, options) if readable else None,
        held=_held(origin, source, options, remote=remote),
        model_digest="" if remote else _digest(source, options),
        oracles=oracles,
        default_name=type(source).__name__,
        guarantee=_guarantee(origin, options, data.inputs),
        frame=frame if options.table is not None else None,
        **data._asdict(),
    )


# -- the model --------------------------------------------------------------------------------------------------------


def _loaded(path: str | Path, options: AuditOptions) -> Any:
    """The model in a file; the name of the file for an ONNX graph that can be queried but not read."""
    if Path(path).suffix.lower() != ".onnx":
        return load_model(path, trust_pickle=options.trust_pickle)
    try:
        return oracle(path, access="weights", **local_options(options)).weights()
    except (UnsupportedModel, TargetError):
        if options.access in ("weights", "gradient"):
            raise
        return path


def _with_shape(source: Any, data: Any, options: AuditOptions) -> AuditOptions:
    """The options, with the shape of one input from the data where a network or a function does not say it."""
    if options.input_shape is not None or not (isinstance(source, nn.Module) or is_plain_function(source)):
        return options
    if isinstance(source, nn.Module) and _says_its_shape(source):
        return options
    rows = getattr(data, "train", data)
    first: Any = rows[0] if isinstance(rows, tuple) else options.unseen
    first = first[0] if isinstance(first, tuple) else first
    shape = options.shape or getattr(data, "shape", None) or np.shape(() if first is None else first)[1:]
    layers = source.modules() if isinstance(source, nn.Module) else ()
    if len(shape) == 1 and any(isinstance(layer, nn.Conv2d) for layer in layers):
        shape = picture_shape(int(shape[0])) or shape  # flat rows of pictures
    if not shape and isinstance(source, nn.Module) and vocabulary_of(source) is not None:
        shape = (text_length(source),)
    return replace(options, input_shape=tuple(shape)) if shape else options


def _says_its_shape(module: nn.Module) -> bool:
    try:
        candidate_shapes(module)
    except UnsupportedModel:
        return False
    return True


def _widest(make: Callable[[Access], Oracle], guards: str, *, local: bool, weights: bool) -> Access:
    """All that the auditor can show: the weights, gradients, or values; labels where there is nothing else."""
    if weights:
        return "weights"
    if "label" in guards.split(","):
        return "label"
    if local:
        with suppress(InvalidInput):
            make("gradient")
            return "gradient"
        with suppress(UnsupportedModel):
            make("value")
            return "value"
        return "label"  # a vote, for example, has no scores
    return "value"


def _kind(
    module: nn.Module | None,
    make: Callable[[Access], Oracle],
    access: Access,
    rows: Tensor | None,
    options: AuditOptions,
    pace: float,
) -> tuple[Kind, bool]:
    """What kind of model it is, and whether its layers say so; a target that does not answer is of unknown kind."""
    if module is not None:
        return kind_of_module(module, rows, input_shape=options.input_shape)
    if access == "label":
        return "unknown", False
    with suppress(TargetError):
        return kind_by_asking(make("value"), rows, lines=_affordable_lines(pace, options.time)), False
    return "unknown", False


def _affordable_lines(pace: float, seconds: float) -> int:
    """Lines along which a model is asked what kind it is: fewer where its answers would take much of the time."""
    return max(1, min(LINES, int(_OF_THE_TIME * seconds / (max(pace, 1e-9) * POINTS * len(SCALES)))))


def _answers(source: Any, make: OracleMaker, access: Access, data: _Data) -> tuple[Answers, float]:
    """What the model shows, from a few answers, and how long it takes to answer a row.

    A single answer that lies between 0 and 1 is a share, and decides at one half.
    """
    if access == "label":
        make.threshold = _threshold_behind_labels(source, make.options, data.some_rows)
        return "labels", _ASSUMED_PACE
    view = make("value")
    affordable = _FEW if view.ledger.remaining is None else min(_FEW, view.ledger.remaining)
    if affordable == 0:
        return "scores", _ASSUMED_PACE
    generator = torch.Generator().manual_seed(0)
    rows = drawn_rows(_FEW, view.input_dim, view.vocabulary, generator)
    rows = (rows if data.some_rows is None else data.some_rows[:_FEW])[:affordable]
    try:
        values, pace = _timed(view, rows, at_once=is_address(source))
    except TargetError:  # for the attacks to report
        return "scores", _ASSUMED_PACE
    classes = data.labels is not None and not data.labels.is_floating_point()
    if data.labels is not None and not classes:
        return "predicted values", pace
    in_range = bool(((values >= 0) & (values <= 1)).all())
    if in_range and values.shape[1] == 1 and not make.knows_layers and _is_share(view, data.some_rows, _FEW):
        make.threshold = HALF
    if in_range and (values.shape[1] == 1 or bool(((values.sum(dim=1) - 1).abs() < 1e-4).all())):
        return "probabilities" if values.shape[1] > 1 or classes else "scores", pace
    if is_estimator(source) and not hasattr(source, "classes_"):
        return "predicted values", pace
    return "logits" if isinstance(source, nn.Module) or is_estimator(source) else "scores", pace


def _threshold_behind_labels(source: Any, options: AuditOptions, rows: Tensor | None) -> float | None:
    """Where the single answer of a function or a graph decides, that shows its decisions only."""
    if is_address(source) or isinstance(source, nn.Module) or is_estimator(source):
        return None  # which say so themselves
    with suppress(DivulgeError):
        view = oracle(source, access="value", **local_options(options))
        return HALF if view.output_dim == 1 and _is_share(view, rows) else None
    return None


def _is_share(view: Oracle, rows: Tensor | None, first: int = 0) -> bool:
    """Whether a single answer that decides by its sign lies between 0 and 1 at more rows, too: from ``first`` on."""
    if view.threshold != 0 or rows is None or (view.ledger.remaining is not None and view.ledger.remaining < _BATCH):
        return False
    with suppress(TargetError):
        values = view.value(rows[first:_BATCH])
        return bool(((values >= 0) & (values <= 1)).all())
    return False


def _timed(view: Oracle, rows: Tensor, *, at_once: bool = False) -> tuple[Tensor, float]:
    """The answers to a few rows, and the seconds that a row of a large batch takes.

    A batch of 64 takes about as long as these rows, unless one of them takes a good part of what they take together:
    then rows are answered one after the other. A remote model is asked all of them ``at_once``.
    """
    started = time.perf_counter()
    first = view.value(rows if at_once else rows[:1])
    one = time.perf_counter()
    if len(first) == len(rows):
        return first.double(), (one - started) / _BATCH
    values = torch.cat([first, view.value(rows[1:])]).double()
    others = time.perf_counter() - one
    each = others / (len(rows) - 1)
    return values, each if others > (len(rows) - 1) / 2 * (one - started) else others / _BATCH


def _weights_of(source: Any, options: AuditOptions) -> nn.Module | None:
    """The weights, where attacks can use them: not those of a model that is asked with whole numbers or a table."""
    if isinstance(source, nn.Module):
        several = isinstance(options.input_shape, Mapping)
        return None if several or hasattr(source, "values_only") or vocabulary_of(source) is not None else source
    if options.table is not None:
        return None
    try:
        weights: nn.Module = oracle(source, access="weights").weights()
        return weights
    except (DivulgeError, AttributeError):
        return None


def _estimator(source: Any, options: AuditOptions) -> Any:
    """The fitted estimator, behind the numeric view of its table where it takes one; None for another model."""
    if not is_estimator(source):
        return None
    if options.table is None:
        return source
    from divulge.oracles.local.sklearn_steps import coded_columns
    from divulge.oracles.local.table_view import TableView
    from divulge.oracles.local.viewed_estimator import ViewedEstimator

    return ViewedEstimator(fitted(source), TableView(options.table, coded_columns(source)))


def _frame_of(data: Any) -> Any:
    """The DataFrame in (X, y), as its owner has it; None where there is none."""
    X = data[0] if isinstance(data, tuple) else None
    return X if hasattr(X, "columns") else None


def _held(origin: str, source: Any, options: AuditOptions, *, remote: bool) -> Any:
    """The model as its holder has it; None where the attacker has no file."""
    if remote or options.guard or options.access not in ("weights", None):
        return None
    return Path(origin) if Path(origin).suffix.lower() == ".onnx" else source


def _digest(source: Any, options: AuditOptions) -> str:
    """Of the weights where they can be read, otherwise of some answers, to the precision that every machine repeats."""
    if isinstance(source, nn.Module):
        return digest(repr(source), *itertools.chain.from_iterable(source.state_dict().items()))
    labels = oracle(source, access="label", **local_options(options))
    rows = torch.randn(64, labels.input_dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    answers: list[float] = labels.label(rows).tolist()
    with suppress(DivulgeError):  # some models answer labels only
        answers += oracle(source, access="value", **local_options(options)).value(rows).flatten().tolist()
    return digest(" ".join(f"{answer:.5g}" for answer in answers))


def _guarantee(origin: str, options: AuditOptions, inputs: Tensor | None) -> Guarantee | None:
    """What differential privacy guarantees; data.json beside the recipe says what the training does not cover."""
    if options.recipe is None or options.recipe.privacy is None:
        return None
    beside = Path(origin) / "recipe.json"
    written = bool(origin) and beside.is_file() and type(options.recipe).load(beside) == options.recipe
    rows = None if inputs is None else len(inputs)
    with suppress(InvalidInput):  # a recipe with batches whose number of rows is not known
        return guarantee_of(Path(origin) if written else options.recipe, rows=rows)
    return None


# -- the data ---------------------------------------------------------------------------------------------------------


class _Data(NamedTuple):
    """What is known of the data, as the fields of a target."""

    inputs: Tensor | None
    labels: Tensor | None
    unseen: Tensor | None
    unseen_labels: Tensor | None
    mean: Tensor | None
    shape: tuple[int, ...] | None
    columns: tuple[str, ...]

    @property
    def some_rows(self) -> Tensor | None:
        """Training and unseen inputs together, as many as show where inputs lie."""
        known = [part[:_SOME] for part in (self.inputs, self.unseen) if part is not None]
        return known[0] if len(known) == 1 else torch.cat(known) if known else None


def _data(given: Any, options: AuditOptions, width: int, taken: tuple[int, ...]) -> _Data:
    """What the caller handed in: (X, y), a data set, or what ``divulge.datasets`` recorded beside a model.

    Options take precedence over what the data says of itself, and that over the shape that the model takes.
    """
    rows = getattr(given, "train", given)
    inputs, labels = (None, None) if given is None else _pair(rows, width, "training data")
    unseen = options.unseen if options.unseen is not None else _recorded_control(given)
    control, control_labels = _control(unseen, width)
    mean = options.mean if options.mean is not None else getattr(given, "mean", None)
    shape = options.shape if options.shape is not None else getattr(given, "shape", None)
    shape = taken if shape is None and _is_picture(taken) else shape
    frame = rows[0] if isinstance(rows, tuple) else None
    columns: Any = options.columns or getattr(given, "columns", None) or getattr(frame, "columns", ())
    return _Data(
        inputs,
        labels,
        control,
        control_labels,
        None if mean is None else torch.as_tensor(mean, dtype=torch.float64).reshape(-1),
        declared_picture(width, shape),
        tuple(map(str, columns)),
    )


def _is_picture(shape: tuple[int, ...]) -> bool:
    """Whether inputs of this shape are pictures: grey or in colour, channels first."""
    return len(shape) == 3 and shape[0] in (1, 3) and min(shape[1:]) >= SMALLEST


def _recorded_control(given: Any) -> Any:
    """The unseen rows that come with the training data, with their labels where those are known."""
    unseen, labels = getattr(given, "unseen", None), getattr(given, "unseen_labels", None)
    return unseen if labels is None else (unseen, labels)


def _control(unseen: Any, width: int) -> tuple[Tensor | None, Tensor | None]:
    if unseen is None:
        return None, None
    if isinstance(unseen, tuple) and len(unseen) == 2:
        return _pair(unseen, width, "unseen data")
    return rows_of(unseen, width, "unseen data"), None


def _pair(rows: Any, width: int, what: str) -> tuple[Tensor, Tensor]:
    try:
        X, y = rows
        labels = torch.as_tensor(y if isinstance(y, Tensor) else np.array(y))
    except (TypeError, ValueError) as error:  # whose own sentence may quote a record
        raise InvalidInput(f"The {what} comes as (X, y), with numbers for labels.") from error
    inputs = rows_of(X, width, what)
    if len(labels) != len(inputs):
        raise InvalidInput(f"The {what} has {len(inputs)} rows and {len(labels)} labels.")
    return inputs, labels


def rows_of(inputs: Any, width: int, what: str) -> Tensor:
    """Rows [n, d] as float64, checked against the width of the model."""
    return checked_rows(inputs, what=f"rows of the {what}", width=width)
