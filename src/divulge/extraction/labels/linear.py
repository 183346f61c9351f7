"""Linear and softmax regression: networks without hidden neurons (Lowd and Meek 2005).

Between two classes the boundary is one hyperplane, and one measured facet gives it. With more classes, the facets of a
spanning tree of the pairs of neighbouring classes span all differences of their weights.
"""

from __future__ import annotations

from divulge.extraction.labels.polygon import Edge
from divulge.extraction.labels.survey import Survey

MOST_SLICES = 40


def measure_class_pairs(survey: Survey) -> None:
    """Measure a facet for each pair of a spanning tree of the classes that meet, with the slices that this needs."""
    if survey.classes == 2:
        return
    tree = _tree(survey)
    while len(tree) < survey.classes - 1 and len(survey.slices) < MOST_SLICES and not survey.corners():
        pair = survey.different()
        if pair is None:
            break
        survey.walk([survey.between(*pair)])
        tree = _tree(survey)
    if not survey.corners():
        survey.measure(tree)


def _tree(survey: Survey) -> list[Edge]:
    """The longest edges that join all the classes that were met."""
    parent = list(range(survey.classes))

    def root(i: int) -> int:
        while parent[i] != i:
            i = parent[i]
        return i

    spread = survey.tolerances.spread
    tree = []
    ranked = sorted(survey.edges(), key=lambda e: (e.facet is None, -min(e.extent(spread)[1], spread)))
    for edge in ranked:
        one, two = root(edge.pair[0]), root(edge.pair[1])
        if one != two:
            parent[one] = two
            tree.append(edge)
    return tree
