"""A student of one hidden ReLU layer, solved and not fitted, where the gradients of a few queries determine it.

``gradients/jacobian_factors.py`` finds the neurons. The biases and the level are linear least squares on the values.
SmoothGrad averages the gates over noise, and the signs of the neurons are then found from the values too. Milli 2019
fit a student by descent instead.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from divulge.core.optim import levenberg_marquardt
from divulge.extraction.gradients.jacobian_factors import Factors, factor, neuron_signs
from divulge.extraction.students.answers import Answers

LEAST, PER_NEURON = 100, 10
"""Queries used, if there are more: at least the first number, or as many as show each neuron the second number."""
TURNS, ROUNDS = 25, 3
"""Steps and rounds of the fit to the values where gates are averages."""
Unknowns = tuple[Tensor, Tensor, Tensor]
"""Signs, biases and level."""
CLOSE = 0.2
"""Largest error on the queries, in standard deviations, of a network that counts as found."""


def fits(student: nn.Module) -> bool:
    """Whether the student is linear, ReLU, linear with biases, and nothing else that computes."""
    leaves = [layer for layer in student.modules() if not any(layer.children())]
    layers = [layer for layer in leaves if not isinstance(layer, nn.Flatten | nn.Identity)]
    if [type(layer) for layer in layers] != [nn.Linear, nn.ReLU, nn.Linear]:
        return False
    return all(layer.bias is not None for layer in layers if isinstance(layer, nn.Linear))


def solve(student: nn.Module, answers: Answers, generator: torch.Generator) -> nn.Module | None:
    """The network that the queries determine, in float64; None where they do not determine one of this width."""
    if answers.gradients is None or answers.absolute or (answers.known is not None and not answers.known.all()):
        return None
    answers = answers[answers.shown.all(dim=1)]  # a class that is hidden at some queries would spoil the form
    width = next(layer.out_features for layer in student.modules() if isinstance(layer, nn.Linear))
    answers = answers[: max(LEAST, PER_NEURON * width // answers.logits.shape[1])]
    assert answers.gradients is not None
    found = factor(answers.gradients, generator, most=width)
    if found is None:
        return None
    model = _assembled(student, answers, found)
    with torch.no_grad():
        off = answers.centred(model(answers.X)) - answers.logits
    return model if float(off.square().mean()) <= CLOSE**2 * float(answers.logits.var()) else None


def unswitched(network: nn.Module, X: Tensor) -> int:
    """How many neurons are on at all of X or at none, so that X does not tell where they switch."""
    first = next(layer for layer in network.modules() if isinstance(layer, nn.Linear))
    with torch.no_grad():
        on = first(X.to(first.weight)) > 0
    return int((on.all(dim=0) | ~on.any(dim=0)).sum())


# -- from neurons to a network ----------------------------------------------------------------------------------------


def _assembled(student: nn.Module, answers: Answers, found: Factors) -> nn.Module:
    """The student with these neurons; the weights of those that no query switched on are zero."""
    inward, outward = found.inward, found.outward
    read = _from_values if found.averaged else _from_gates
    signs, bias, level = read(answers, answers.X @ inward.T, outward, found.gates.T)
    model = copy.deepcopy(student).to("cpu", torch.float64)
    first, last = (layer for layer in model.modules() if isinstance(layer, nn.Linear))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        first.weight[: len(inward)] = signs[:, None] * inward
        first.bias[: len(inward)] = bias
        last.weight[:, : len(inward)] = signs * outward.T
        last.bias.copy_(level)
    return model


def _from_gates(answers: Answers, reached: Tensor, outward: Tensor, gates: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Signs, biases and level by least squares on the values, where it is known which neurons are on at each query.

    (w, v) and (-w, -v) have the same gradients; the gates are on at the higher inputs. A neuron that is on at every
    query is part of a linear map as far as these can tell, and is kept on around them.
    """
    signs = neuron_signs(reached, gates)
    reached, outward = signs * reached, signs[:, None] * outward
    wanted = answers.logits - answers.centred((gates * reached) @ outward)
    solution = _least_squares(answers, gates[:, None, :] * outward.T, wanted)
    bias, level = solution[: len(outward)], solution[len(outward) :]
    room = (reached.amax(dim=0) - 2 * reached.amin(dim=0) - bias).clamp_min(0) * gates.all(dim=0)
    return signs, bias + room, level - outward.T @ room


def _from_values(answers: Answers, reached: Tensor, outward: Tensor, gates: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The same where the gates are averages and do not tell: s v relu(s a) = v (a + s |a|) / 2 is fitted for s too.

    Damped Gauss-Newton on the values, in rounds: with the signs held, then with signs that may take any value and are
    rounded for the next round. The first are those that the gates tell, and the best round is kept.
    """
    fit = _Values(answers, reached, outward)
    none = reached.new_zeros(len(outward))
    start = neuron_signs(reached, gates), none, answers.logits.mean(dim=0)
    rounds, free = [], (none, none, start[2])
    for _ in range(ROUNDS):
        held = fit.nearest(*start, free_signs=False)
        rounds.append((float(fit.off(*held).square().mean()), held))
        free = fit.nearest(*free, free_signs=True)
        start = torch.where(free[0] < 0, -1.0, 1.0).to(reached), *free[1:]
        free = held if len(rounds) > 1 else free
    signs, bias, level = min(rounds, key=lambda one: one[0])[1]
    return signs, signs * bias, level


@dataclass(frozen=True)
class _Values:
    """sum_h v_h (a_h + s_h |a_h|) / 2 + c with a = reached + b, as a function of s, b and c."""

    answers: Answers
    reached: Tensor
    outward: Tensor

    def off(self, signs: Tensor, bias: Tensor, level: Tensor) -> Tensor:
        """[n, k]: what it misses of the answers."""
        a = self.reached + bias
        z = ((a + signs * a.abs()) / 2) @ self.outward + level
        return self.answers.logits - self.answers.centred(z)

    def nearest(self, signs: Tensor, bias: Tensor, level: Tensor, *, free_signs: bool) -> Unknowns:
        """The nearest fit that Gauss-Newton with damping finds from here."""
        h = len(bias)

        def evaluate(at: Unknowns) -> tuple[float, Tensor]:
            off = self.off(*at)
            return float(off.square().mean()), off

        def propose(at: Unknowns, off: Tensor, damping: float) -> Unknowns:
            signs, bias, level = at
            a = self.reached + bias
            slope = (1 + signs * a.sign())[:, None, :] / 2 * self.outward.T
            if free_signs:
                slope = torch.cat([slope, a.abs()[:, None, :] / 2 * self.outward.T], dim=2)
            step = _least_squares(self.answers, slope, off, damping=damping)
            turn = step[h : 2 * h] if free_signs else torch.zeros_like(signs)
            return signs + turn, bias + step[:h], level + step[-len(level) :]

        return levenberg_marquardt(
            (signs, bias, level), evaluate, propose, damping=1e-2, eased=lambda damping: damping / 5,
            raised=lambda damping: damping * 5, proposals=TURNS,
        ).point  # fmt: skip


def _least_squares(answers: Answers, slope: Tensor, wanted: Tensor, *, damping: float = 0.0) -> Tensor:
    """The t [m] and level [k], one after the other, with slope t + level [n, k] nearest to the wanted."""
    n, k = wanted.shape
    design = answers.centre @ torch.cat([slope, torch.eye(k).to(slope).expand(n, k, k)], dim=2)
    design, wanted = design.reshape(n * k, -1), wanted.reshape(-1, 1)
    if damping:
        size = design.norm(dim=0).clamp_min(1e-12 * float(design.norm()))
        design = torch.cat([design, damping * torch.diag(size)])
        wanted = torch.cat([wanted, wanted.new_zeros(design.shape[1], 1)])
    solution: Tensor = torch.linalg.lstsq(design, wanted, driver="gelsd").solution[:, 0]
    return solution
