"""Why there is no equivalent copy: one sentence for each kind of target."""

from __future__ import annotations

from divulge.extraction.labels.discovery import Discovery
from divulge.extraction.labels.facets import along_axes
from divulge.extraction.labels.source import LabelSource
from divulge.extraction.labels.verification import Agreement

RARELY = 0.01
"""Share of rows up to which a copy that decides otherwise is one that lacks little."""


def one_class(label: int, rows: int, unbounded: bool) -> str:
    farther = "rows up to 30 times farther out" if unbounded else "rows near the bounds"
    return f"All {rows:,} rows of the region have label {label}, and so have {farther}: there is no boundary to follow."


def outside(factor: float, rows: int) -> str:
    return (
        f"All {rows:,} rows of the region have one label; the label changes {factor:g} times farther out. Give inputs= "
        "rows like the target's data, or a larger scale."
    )


def random_labels(share: float) -> str:
    return (
        f"About {share:.0%} of the labels are wrong at random when a row is asked again; votes cannot tell a boundary "
        "from that."
    )


def curved() -> str:
    return (
        "No piece of the boundary that was looked at is straight, not even in the smallest circles: so look smooth "
        "networks, kernels and quadratic models, and ReLU networks only with very many neurons; "
        "divulge.extraction.by_training learns a copy of the target."
    )


def rounded(precision: float) -> str:
    return (
        f"The target rounds: its labels show the boundary to about {precision:.0e} of an input only. "
        "That is too coarse to find every neuron of this target, or to tell a ReLU network from another model; "
        "divulge.extraction.by_training learns a copy of it."
    )


def axes() -> str:
    return (
        "Every piece of the boundary that was measured is parallel to an axis of the inputs: the target is a tree or "
        "an ensemble of trees, not a ReLU network."
    )


def unrelated(bends: int) -> str:
    return (
        f"The boundary has straight pieces, and {bends} bends between them fit no hidden neuron: so look nearest "
        "neighbours, ensembles of trees and networks with many hidden layers."
    )


def more_layers(least: int) -> str:
    return (
        f"The target has {least} hidden layers or more, or neurons so nearly parallel that labels do not tell them "
        "apart, or its boundary does not show a whole layer."
    )


def lowest_layers(found: list[int]) -> str:
    layers = " and ".join(f"{n} of layer {i + 1}" for i, n in enumerate(found))
    return f"Neurons found of its hidden layers: {layers} (hidden_layers)."


def flat(count: int) -> str:
    which = (
        "One combination of output weights changes" if count == 1 else f"{count} combinations of output weights change"
    )
    return f"{which} nothing where the boundary was met, and the copy has no part of that kind."


def always_on() -> str:
    return (
        "The copy has a linear part beside its neurons: it sums up neurons that are on along the whole boundary in the "
        "region. Neurons that are off along all of it are not in the copy."
    )


def chosen(count: int) -> str:
    return (
        f"{count} of the neurons bend the boundary between one pair of facets only: labels leave a number of each "
        "open, and the copy has one hyperplane of many that decide alike."
    )


def flips(share: float) -> str:
    return (
        f"About {share:.1%} of the labels are wrong at random when a row is asked again, and votes did not make up for "
        "that."
    )


def changed() -> str:
    return (
        "The copy decides like the target on fresh rows, and otherwise than the target did on rows that were asked "
        "before: the target has changed on the way, or labels are wrong at random."
    )


def wrong_before(rows: int) -> str:
    where = "at one row that was" if rows == 1 else f"at {rows:,} rows that were"
    return (
        f"The copy decides like the target on all fresh rows, and otherwise {where} asked on the way: it lacks a "
        "neuron that shows rarely, or is imprecise there."
    )


def disagrees(measured: Agreement, discovery: Discovery, source: LabelSource) -> str:
    """The copy decides otherwise on some rows: what kind of target does that."""
    if source.wrong:
        return flips(source.wrong)
    if along_axes(discovery.survey.facets):
        return axes()
    far, worst = 1 - measured.rows, 1 - min(measured.near.values(), default=1.0)
    if min(measured.rows, measured.own) >= 1 - RARELY:
        return _rarely_otherwise(measured, worst)
    if discovery.deep:
        return (
            "The boundary bends at hyperplanes that it crosses elsewhere without a bend, and no copy with several "
            "hidden layers fits: the target has more of them, or neurons so nearly parallel that labels do not "
            f"tell them apart. The copy decides otherwise on {far:.2%} of fresh rows."
        )
    return (
        f"The copy decides otherwise on {far:.2%} of fresh rows and on {worst:.1%} of rows near the boundary: the "
        "target is not a ReLU network with few hidden layers, or the boundary shows too little of it."
    )


def _rarely_otherwise(measured: Agreement, worst: float) -> str:
    """Where a copy that decides like the target on nearly all rows decides otherwise."""
    rows, points = measured.compared, measured.compared_near
    wrong, alike = round((1 - measured.rows) * rows), ""
    where = [f"on {wrong:,} of {rows:,} fresh rows"] * (wrong > 0)
    where += [f"on {1 - measured.own:.2%} of the rows in inputs="] * (measured.own < 1)
    where += [f"next to {round(worst * points):,} of {points:,} points of the boundary"] * (worst > 0)
    if not wrong:
        alike = f"like the target on all {rows:,} fresh rows, and "
    return (
        f"The copy decides {alike}otherwise {', '.join(where[:-1])}{' and ' * (len(where) > 1)}{where[-1]}: it is "
        "imprecise there or lacks a neuron that shows rarely, or the target is not a ReLU network with few hidden "
        "layers."
    )
