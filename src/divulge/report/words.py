"""What the words of a report mean, for a reader who knows none of the papers."""

from __future__ import annotations

import re

from divulge.report.findings import Adversary

WORDS = (
    ("severity", "critical, high, medium or low by a written rule: who gets what, and how easily"),
    ("inconclusive", "the attack did not run to its end, so nothing can be said"),
    ("exact copy", "a second model that gives the same answer to every input that was tried"),
    ("up to a scale", "the copy decides the same; its numbers are larger or smaller by a constant factor"),
    ("logit", "the number from which a model computes a probability"),
    ("spread", "how much a column varies between records: its standard deviation"),
    ("member", "somebody whose record was used for training"),
    ("AUC", "the chance that a member scores higher than somebody else; one half is chance alone"),
    ("query", "one input that is asked, for a label (decision), a value (numbers) or a gradient (how they change)"),
    ("piecewise-linear", "made of flat pieces, as networks of ReLU and convolution (Conv2d) layers are"),
    ("guard", "a defence in front of the model: label shows decisions only, round:4 rounds to four digits"),
    ("private training", "training with noise, so that one record changes little of what is released"),
    ("epsilon", "how much private training lets one record change what is released; smaller is safer"),
    ("delta", "the small chance with which the promise of epsilon may fail"),
    ("noise multiplier", "how much noise private training adds; more protects better and costs accuracy"),
    ("blind guess", "the best guess at a record that somebody makes without the model"),
    ("balanced accuracy", "the share of right decisions, as a mean over the classes"),
    ("interval", "where a figure would lie if more had been measured, with the certainty that is stated"),
    ("explanation", "how an answer changes with each part of the input (a gradient)"),
    ("ReLU", "the usual kind of layer in a neural network"),
    ("student", "a model that somebody trains on the answers of this one"),
    ("digest", "a number computed from a file (SHA-256) that changes if a byte of the file does"),
)  # fmt: skip
"""The technical words of a report, each with what it means."""
_STEMS = {"exact copy": "exactly", "query": "quer(y|ies)"}
"""How a word is looked for in a text, where it does not stand as it is written."""


def used_in(text: str) -> list[tuple[str, str]]:
    """The technical words that a text uses, each with what it means.

    Parameters
    ----------
    text : str
        The text.

    Returns
    -------
    list of (str, str)
        Entries of ``WORDS``, in their order.

    Examples
    --------
    >>> [word for word, meaning in used_in("Private training at epsilon 2, delta 1e-5.")]
    ['private training', 'epsilon', 'delta']
    """
    found = [re.search(rf"\b({_STEMS.get(word, re.escape(word))})", text, re.IGNORECASE) for word, _ in WORDS]
    return [entry for entry, match in zip(WORDS, found, strict=True) if match]


ADVERSARIES: dict[Adversary, str] = {
    "label client": "asks the model and sees its decisions",
    "prediction client": "asks and sees the numbers behind decisions",
    "explanation client": "asks and sees how the numbers depend on the input",
    "holder of the weights": "has the file of the model",
    "insider": "has the model and all training records but one",
}
"""Each adversary by what they can see or hold."""
