"""Learning a copy: a student network fitted to a target's values and gradients (Milli 2019, sections 4 to 6).

``method="paper"`` is the joint loss l_G + lambda l_M as printed. The default departs from it where it was measured to
learn more from the same queries: gradients of logits, both terms in units of the target's spread (matching_loss.py),
gates that the gradient loss can move (gates.py), random combinations of the outputs for convolutional students, and,
if asked for, several students together, self-training on unlabelled inputs and chosen queries. Choices are made on a
held-out part of the queries, never on true labels. A student of one linear layer is solved in closed form, and one with
one hidden ReLU layer is solved where the queries determine it (hidden_student.py).
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, get_args

import torch
from torch import Tensor, nn

from divulge.errors import AccessDenied, AttackFailed, DivulgeError, InvalidInput
from divulge.extraction import choosing, hidden_student
from divulge.extraction.answers import Answers, Classes, Outputs, are_integrated, ask, told_outputs, understand
from divulge.extraction.fitting import Fitter, Match, Method, Settings, together
from divulge.extraction.linear_student import Solved, is_linear, solve
from divulge.extraction.result import Extraction
from divulge.extraction.softmax import Sigmoid
from divulge.extraction.students import Student, compare, logits_of
from divulge.extraction.verification import spread
from divulge.oracles.base import Oracle, Spent, as_rows, check_finite_rows
from divulge.oracles.torch_model import Probabilities, input_shape_of

ENOUGH_TO_HOLD_OUT = 50
"""Queries from which on a tenth of them is held out by default; with fewer, every one is needed."""
ACTIVE_ROUNDS = 3


def by_training(
    oracle: Oracle,
    student: Student,
    inputs: Any,
    *,
    queries: int | None = None,
    choose: choosing.Choice = "random",
    match: Match = "both",
    weight: float | None = None,
    method: Method = "default",
    target_output: Outputs | None = None,
    classes: Classes = "all",
    unlabelled: Any = None,
    ensemble: int = 1,
    steps: int | None = None,
    batch_size: int | None = None,
    learning_rate: float | None = None,
    combinations: int | None = None,
    sharpness: float | None = None,
    hold_out: float | None = None,
    input_shape: Sequence[int] | None = None,
    device: str = "cpu",
    seed: int = 0,
) -> Extraction:
    """Fit a student to what the oracle answers on ``inputs``.

    ``student`` is an nn.Module (its weights are where the first student starts), an architecture's name or its
    description. ``inputs`` are rows [n, d], all of which are asked; with ``queries`` that many are taken from them,
    by ``choose``: at random, at the centres of k-means clusters, or actively, where two students disagree most.
    ``inputs="gaussian"`` draws ``queries`` inputs from N(0, I).

    ``match`` says what is fitted: values alone, gradients alone (the values that come with them only set the level of
    each output), or both, with ``weight`` (lambda) on the values. ``target_output`` is what the target shows; None
    tells it from the answers. ``classes="predicted"`` uses the gradient of the predicted class only. ``ensemble``
    students are fitted and their logits averaged. ``unlabelled`` rows are labelled by them and learned from again.
    ``combinations`` of the outputs' gradients are matched at each step: by default all, one for a student with
    convolutions. ``sharpness`` is that of the gates. ``hold_out`` is the share of the queries kept for choices.

    If the budget ends or the target fails in the middle, the error carries in ``partial`` the copy learned so far.
    """
    began, before = time.perf_counter(), oracle.ledger.snapshot()
    _check_options(oracle, match=match, method=method, target_output=target_output, classes=classes, choose=choose)
    _check_numbers(ensemble=ensemble, steps=steps, batch_size=batch_size, queries=queries, combinations=combinations)
    if hold_out is not None and not 0 <= hold_out < 1:
        raise InvalidInput(f"hold_out is the share of the queries kept for choices, from 0 to below 1; got {hold_out}.")
    pool, count = _pool(oracle, inputs, queries, seed)
    settings = Settings(
        match=match, method=method, outputs=target_output or "logits", classes=classes,
        weight=0.1 if weight is None else weight,
        steps=steps or _default_steps(count, match), batch_size=batch_size or _default_batch(count, match),
        learning_rate=learning_rate or 0.0, combinations=combinations, sharpness=sharpness or 0.0, seed=seed,
        device=device,
    )  # fmt: skip
    fitter = _for_student(Fitter(oracle, student, input_shape, settings))
    linear = is_linear(fitter.new(0))
    if count < oracle.output_dim and not (linear and match != "values"):
        raise InvalidInput(
            f"{count} queries are fewer than the target's {oracle.output_dim} outputs, too few to learn them; ask at "
            f'least {oracle.output_dim}. One gradient is enough only for a single linear layer, student="softmax".'
        )
    extra_rows = None if unlabelled is None else _rows(oracle, unlabelled)
    answers, stopped, fitter = _gather(fitter, pool, count, choose, target_output)
    if weight is None and (answers.absolute or isinstance(inputs, str) or method == "paper" or classes == "predicted"):
        fitter = replace(fitter, settings=replace(fitter.settings, weight=1.0))  # where gradients tell less
    made = _Making(fitter, before, began, _notes(answers))
    if answers.gradients is not None and not bool(answers.gradients.any()):
        raise _all_zero(made, answers)
    solved = None
    if linear and match != "values" and classes == "all" and method == "default":
        solved = solve(fitter.new(0), answers, oracle.eps)
    if solved is not None:
        return _finish(made.solved(solved, answers), stopped)
    kept, held = _split(answers, hold_out, settings)
    if match != "values" and classes == "all" and method == "default" and hidden_student.fits(fitter.new(0)):
        network = hidden_student.solve(fitter.new(0), kept, settings.generator(4))
        if network is not None:
            return _finish(made.rebuilt(network.to(settings.device, oracle.dtype), kept, held), stopped)
    students = fitter.several(kept, held, ensemble)
    if extra_rows is not None:
        students = fitter.self_trained(students, kept, held, extra_rows)
    return _finish(made.fitted(together(students), kept, held), stopped)


# -- queries ----------------------------------------------------------------------------------------------------------


def _pool(oracle: Oracle, inputs: Any, queries: int | None, seed: int) -> tuple[Tensor, int]:
    """The inputs to choose from, and how many to ask."""
    if isinstance(inputs, str):
        if inputs != "gaussian":
            raise InvalidInput(f'inputs are rows [n, d] or "gaussian", not {inputs!r}.')
        if queries is None:
            raise InvalidInput("Say how many Gaussian inputs to ask, with queries=.")
        generator = torch.Generator().manual_seed(1_000_003 * seed + 1)
        return choosing.gaussian(queries, oracle.input_dim, generator), queries
    pool = _rows(oracle, inputs)
    if queries is not None:
        choosing.check_pool(pool, queries)
    return pool, len(pool) if queries is None else queries


def _rows(oracle: Oracle, X: Any) -> Tensor:
    return check_finite_rows(as_rows(X, oracle.input_dim, torch.float64, torch.device("cpu")))


def _gather(
    fitter: Fitter, pool: Tensor, count: int, choose: choosing.Choice, outputs: Outputs | None
) -> tuple[Answers, DivulgeError | None, Fitter]:
    """Choose the queries and ask them; what stopped it, if anything did; and the fitter, told what the target shows."""
    settings, oracle = fitter.settings, fitter.oracle
    gradients = settings.match != "values"
    generator = settings.generator(2)
    if choose == "k-means":
        X = choosing.k_means(pool, count, seed=settings.seed)
    else:
        order = torch.randperm(len(pool), generator=generator) if count < len(pool) else torch.arange(len(pool))
        start = count if choose == "random" else max(oracle.output_dim, count // 2)
        X, pool = pool[order[:start]], pool[order[start:]]
    values, maps, stopped = ask(oracle, X, gradients=gradients)
    X = X[: len(values)]
    told = outputs or told_outputs(values, oracle.threshold)
    fitter = replace(fitter, settings=replace(settings, outputs=told))
    integrated = settings.method == "default" and are_integrated(values, maps, told)
    form: dict[str, Any] = {"outputs": told, "classes": settings.classes, "integrated": integrated}
    answers = understand(X, values, maps, **form)
    rounds = ACTIVE_ROUNDS if choose == "active" else 0
    for turn in range(rounds):
        more = math.ceil((count - len(answers)) / (rounds - turn))
        if stopped is not None or more < 1:
            break
        two = [
            logits_of(
                fitter.fitted(answers, number=number, steps=max(1, settings.steps // 3), stage="choosing queries")
            )
            for number in (1, 2)
        ]
        chosen = choosing.where_they_disagree(pool.to(settings.device, torch.float32), more, *two)
        rest = torch.ones(len(pool), dtype=torch.bool)
        rest[chosen] = False
        try:
            values, maps, stopped = ask(oracle, pool[chosen], gradients=gradients)
        except DivulgeError as error:
            stopped = error
            break
        extra = understand(pool[chosen][: len(values)], values, maps, **form)
        answers, pool = answers.followed_by(extra), pool[rest]
    return answers, stopped, fitter


def _split(answers: Answers, hold_out: float | None, settings: Settings) -> tuple[Answers, Answers | None]:
    """The answers to learn from, and those held out for choices, if any."""
    share = hold_out if hold_out is not None else (0.1 if len(answers) >= ENOUGH_TO_HOLD_OUT else 0.0)
    aside = math.ceil(share * len(answers))
    if not aside or aside >= len(answers):
        return answers, None
    order = torch.randperm(len(answers), generator=settings.generator(3))
    return answers[order[aside:]], answers[order[:aside]]


# -- what comes out ---------------------------------------------------------------------------------------------------


class _Making:
    """Turns a fitted student into a result."""

    def __init__(self, fitter: Fitter, before: Spent, began: float, notes: list[str]) -> None:
        self.fitter, self.before, self.began, self.notes = fitter, before, began, notes

    def fitted(self, student: nn.Module, kept: Answers, held: Answers | None) -> Extraction:
        return self._judged(student, kept, held, "A fitted student agrees with the target; it is not equal to it.")

    def rebuilt(self, network: nn.Module, kept: Answers, held: Answers | None) -> Extraction:
        """A network of one hidden layer that was solved: exact if queries that did not make it say so."""
        self.notes.append("The student has one hidden layer, and the queries determine it: it was solved, not fitted.")
        if held is None:
            return self._judged(network, kept, held, "Every query went into solving it, and none is left to verify it.")
        result = self._judged(network, kept, held, "")
        if result.worst_error <= max(1e-9, 1e3 * self.fitter.oracle.eps) * result.scale:
            return result
        reason = (
            f"Held-out queries differ by up to {result.worst_error / result.scale:.1e} of the outputs' standard "
            "deviation: neurons that no query switched on are missing, or explanations were averaged."
        )
        return replace(result, exact=False, reason=reason)

    def _judged(self, student: nn.Module, kept: Answers, held: Answers | None, reason: str) -> Extraction:
        settings = self.fitter.settings
        dtype = next(student.parameters()).dtype
        seen = (kept if held is None else held).to(dtype, settings.device)
        error, agreement = compare(student, seen)
        with torch.no_grad():
            z = logits_of(student)(seen.X)
            worst = float(((seen.centre @ z[:, :, None])[:, :, 0] - seen.logits).abs().max())
        facts: dict[str, object] = {
            "agreement_on_held_out_queries": None if held is None else agreement,
            "agreement_on_queries": compare(student, kept.to(dtype, settings.device))[1],
            "held_out_queries": 0 if held is None else len(held),
            "mean_squared_error": error,
        }
        if held is None:
            return self._result(student, facts, math.inf, 0, spread(kept.logits), reason)
        return self._result(student, facts, worst, len(held), spread(kept.logits), reason)

    def solved(self, solved: Solved, answers: Answers) -> Extraction:
        reason = "" if solved.points else "One query makes the layer and leaves none to verify it; ask one more."
        self.notes.append("The student is one linear layer, solved in closed form from the first query.")
        facts: dict[str, object] = {"closed_form": True, "agreement_on_queries": compare(solved.model, answers)[1]}
        return self._result(solved.model, facts, solved.worst, solved.points, spread(answers.logits), reason)

    def _result(
        self, student: nn.Module, facts: dict[str, object], worst: float, points: int, scale: float, reason: str
    ) -> Extraction:
        settings, oracle = self.fitter.settings, self.fitter.oracle
        described = {
            "student": _name(self.fitter.student), "match": settings.match, "target_output": settings.outputs,
            "classes": settings.classes, "weight": settings.weight, "steps": settings.steps,
        }  # fmt: skip
        return Extraction(
            model=_as_shown(student, settings.outputs), width=0, exact=not reason, worst_error=worst, scale=scale,
            ledger=oracle.ledger.snapshot() - self.before, seed=settings.seed,
            seconds=time.perf_counter() - self.began, method=f"training ({settings.method})", reason=reason,
            verified_points=points, notes=tuple(self.notes), facts={**described, **facts},
        )  # fmt: skip


def _finish(result: Extraction, stopped: DivulgeError | None) -> Extraction:
    if stopped is not None:
        stopped.partial = result
        raise stopped
    return result


def _all_zero(made: _Making, answers: Answers) -> AttackFailed:
    made.fitter = replace(made.fitter, settings=replace(made.fitter.settings, match="values"))
    return AttackFailed(
        f"Every gradient of {len(answers)} queries is zero: the endpoint is saturated or masks its explanations. "
        'Ask it with match="values"; a copy learned from the values that came along is kept.',
        partial=made.fitted(made.fitter.fitted(answers), answers, None),
    )


def _as_shown(student: nn.Module, outputs: Outputs) -> nn.Module:
    """The student followed by what turns its logits into what the target shows."""
    if outputs == "logits":
        return student.eval()
    shape = input_shape_of(student)
    with torch.no_grad():
        parameter = next(student.parameters())
        single = student(torch.zeros(1, *shape, dtype=parameter.dtype, device=parameter.device)).numel() == 1
    last: nn.Module = Probabilities(log=outputs == "log-probabilities")
    if single:
        last = Sigmoid() if outputs == "probabilities" else nn.LogSigmoid()
    shown = nn.Sequential(student, last)
    shown.input_shape = shape  # type: ignore[assignment]
    return shown.eval()


def _notes(answers: Answers) -> list[str]:
    notes = []
    if answers.absolute:
        notes.append("No gradient has a negative entry: taken for absolute values, whose signs the student must find.")
    if answers.known is not None:
        share = 100 * float(answers.known.mean())
        notes.append(
            "Every explanation adds up to its value: taken for integrated gradients from zero, which divided by the "
            f"input tell {share:.0f} % of the gradients."
        )
    if answers.raw_gradients is not None:
        dead = int((answers.raw_gradients == 0).flatten(1).all(dim=1).sum())
        if 0 < dead < len(answers):
            notes.append(f"{dead} of {len(answers)} queries came back with a gradient of zero.")
    hidden = float(1 - answers.shown.mean())
    if hidden:
        notes.append(f"{100 * hidden:.2g} % of the probabilities are exactly 0, which hides their logits.")
    return notes


def _name(student: Student) -> str:
    if isinstance(student, nn.Module):
        spec = getattr(student, "spec", None) or {}
        return str(spec.get("architecture", type(student).__name__))
    return student if isinstance(student, str) else str(student.get("architecture"))


# -- choices and checks -----------------------------------------------------------------------------------------------


def _for_student(fitter: Fitter) -> Fitter:
    """Settings that depend on the student: convolutions make every output's gradient dear, gates sharper and steps
    shorter; one linear layer takes long steps."""
    student, settings = fitter.new(0), fitter.settings
    convolutional = any(isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d) for layer in student.modules())
    rate = 2e-3 if convolutional else 5e-2 if is_linear(student) else 1e-2
    return replace(
        fitter,
        settings=replace(
            settings,
            combinations=settings.combinations or (1 if convolutional else None),
            sharpness=settings.sharpness or (3.0 if convolutional else 1.0),
            learning_rate=settings.learning_rate or rate,
        ),
    )


def _default_batch(count: int, match: Match) -> int:
    return count if count <= 30 else 25 if match != "values" else min(128, max(25, count // 8))


def _default_steps(count: int, match: Match) -> int:
    """Enough for a small set to be fitted, and at least 20 passes over a large one of values, 5 over gradients."""
    passes = 20 if match == "values" else 5
    return max(1200, passes * count // _default_batch(count, match))


def _check_options(
    oracle: Oracle, *, match: str, method: str, target_output: str | None, classes: str, choose: str
) -> None:
    chosen = {"match": (match, Match), "method": (method, Method), "classes": (classes, Classes),
              "choose": (choose, choosing.Choice), "target_output": (target_output or "logits", Outputs)}  # fmt: skip
    for name, (value, kind) in chosen.items():
        if value not in get_args(kind):
            raise InvalidInput(f"{name} is one of {', '.join(get_args(kind))}; got {value!r}.")
    needed = "value" if match == "values" else "gradient"
    if not oracle.allows(needed):  # type: ignore[arg-type]
        hint = 'match="values" needs values' if oracle.allows("value") else "labels alone are not matched"
        raise AccessDenied(
            f"match={match!r} needs {needed} access and this oracle grants {oracle.access} access only; {hint}."
        )


def _check_numbers(**numbers: int | None) -> None:
    for name, value in numbers.items():
        if value is not None and (value != int(value) or value < 1):
            raise InvalidInput(f"{name} is a whole number of at least 1; got {value!r}.")
