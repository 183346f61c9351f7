"""What regulators and standards name as attacks on a model, and what an audit says about each of them.

Three texts name attack classes:

- EDPB Opinion 28/2024 on AI models, adopted on 17 December 2024, paragraph 55: what a structured test of a model that
  is claimed to be anonymous should cover. Paragraph 43 asks that the likelihood of obtaining personal data is
  insignificant for any data subject.
- NIST AI 100-2 E2025, Adversarial Machine Learning, March 2025: the privacy attacks of its taxonomy, by identifier.
- ISO/IEC 27090, final draft of 2026: threats to AI systems.

The table is evidence for whoever decides. It is no legal advice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from divulge.report.findings import Finding, Skipped, worst

Coverage = Literal["measured", "proved", "tried too briefly", "not covered"]
COVERAGES: tuple[Coverage, ...] = ("measured", "proved", "tried too briefly", "not covered")

EDPB = "EDPB Opinion 28/2024, paragraph 55 (17 December 2024)"
NIST = "NIST AI 100-2 E2025 (March 2025)"
ISO = "ISO/IEC 27090 (final draft, 2026)"
DISCLAIMER = "This table is evidence for whoever decides. It is no legal advice."

_RECORDS = ("training-data", "informed", "contents")
_PREFIXES: dict[str, tuple[str, ...]] = {
    "copy": ("copy-", "last-layer"),
    "training-data": ("data-from-", "chain-to-", "data-of-"),
    "informed": ("informed-",),
    "contents": ("file-contents", "contents"),
    "membership": ("membership",),
    "attributes": ("attribute",),
}
"""How the names of the attacks on each question start."""
_GENERATIVE = "It concerns models that generate text or pictures. The attacks of this audit ask predictive models."


@dataclass(frozen=True)
class AttackClass:
    """A class of attacks as a regulator or a standard names it.

    Parameters
    ----------
    source : str
        The text, with paragraph and date.
    name : str
        What the text calls the class, with its identifier where it has one.
    plain : str
        What it means, in one sentence.
    questions : tuple of str
        The questions of an audit that measure it.
    bounded : bool, default False
        Whether differential privacy bounds it.
    absent : str, default ""
        Why no attack of divulge measures it.
    """

    source: str
    name: str
    plain: str
    questions: tuple[str, ...] = ()
    bounded: bool = False
    absent: str = ""


@dataclass(frozen=True)
class ScopeRow:
    """What an audit says about one class of attacks.

    Parameters
    ----------
    attack : AttackClass
        The class.
    coverage : {"measured", "proved", "tried too briefly", "not covered"}
        Whether attacks of the class ran to their end, a bound covers it, they were stopped early, or neither.
    result : str
        The worst outcome of the attacks that measured it: a severity, "not taken", or empty.
    findings : tuple of str
        Names of the findings behind it.
    why : str
        What was measured or proved, or why nothing was, in one sentence.

    Examples
    --------
    >>> from divulge.report import Report
    >>> rows = Report({"name": "m", "kind": "a linear model"}, [], [], seconds=1.0, seed=0).scope
    >>> rows[0].coverage
    'not covered'
    """

    attack: AttackClass
    coverage: Coverage
    result: str
    findings: tuple[str, ...]
    why: str

    def as_dict(self) -> dict[str, Any]:
        """Plain values for report.json."""
        return {
            "source": self.attack.source,
            "name": self.attack.name,
            "meaning": self.attack.plain,
            "coverage": self.coverage,
            "result": self.result,
            "findings": list(self.findings),
            "why": self.why,
        }


_MEMBERSHIP = "Somebody finds out that a person's record was used for training."
_COPY = "Somebody obtains the model itself, or a copy that answers like it."
_REBUILT = "Somebody computes training records, or parts of them, out of the model or its answers."
CLASSES: tuple[AttackClass, ...] = (
    AttackClass(
        EDPB, "attribute inference", "Somebody finds out what a person did not disclose.", ("attributes",), bounded=True
    ),
    AttackClass(EDPB, "membership inference", _MEMBERSHIP, ("membership",), bounded=True),
    AttackClass(EDPB, "exfiltration", _COPY, ("copy",)),
    AttackClass(
        EDPB, "regurgitation of training data", "The model repeats training records in its answers.",
        absent=_GENERATIVE, bounded=True,
    ),
    AttackClass(
        EDPB, "model inversion", "Somebody computes what typical or actual training inputs look like.",
        ("training-data",), bounded=True,
    ),
    AttackClass(EDPB, "reconstruction", _REBUILT, _RECORDS, bounded=True),
    AttackClass(NIST, "NISTAML.031 model extraction", _COPY, ("copy",)),
    AttackClass(NIST, "NISTAML.032 reconstruction", _REBUILT, _RECORDS, bounded=True),
    AttackClass(NIST, "NISTAML.033 membership inference", _MEMBERSHIP, ("membership",), bounded=True),
    AttackClass(
        NIST, "NISTAML.034 property inference", "Somebody finds out a property of the training data as a whole.",
        absent="No attack of divulge measures it, and differential privacy of single records does not bound it.",
    ),
    AttackClass(
        NIST, "NISTAML.038 data extraction", "Somebody makes a generative model repeat its training data.",
        absent=_GENERATIVE, bounded=True,
    ),
    AttackClass(ISO, "model extraction", _COPY, ("copy",)),
    AttackClass(ISO, "membership inference", _MEMBERSHIP, ("membership",), bounded=True),
)  # fmt: skip
"""Every class of attacks that the table lists."""


def scope(findings: Sequence[Finding], skipped: Sequence[Skipped], *, guarantee: str = "") -> list[ScopeRow]:
    """What an audit says about every class of attacks that regulators and standards name.

    Parameters
    ----------
    findings : sequence of Finding
        What the attacks found.
    skipped : sequence of Skipped
        The attacks without a finding.
    guarantee : str, default ""
        The differential privacy that the training guarantees, in words; empty where none is guaranteed.

    Returns
    -------
    list of ScopeRow
        One row a class, in the order of the texts.
    """
    return [_row(attack, findings, skipped, guarantee) for attack in CLASSES]


def _row(attack: AttackClass, findings: Sequence[Finding], skipped: Sequence[Skipped], guarantee: str) -> ScopeRow:
    found = [f for f in findings if not f.is_advice and (f.question in attack.questions or _belongs(f.name, attack))]
    left = [skip for skip in skipped if _belongs(skip.name, attack)]
    from_file = {skip.reason for skip in left if skip.name.startswith(_PREFIXES["contents"])}
    ended = [f for f in found if f.state != "inconclusive"]
    failed = [skip for skip in left if skip.ending == "failed"]
    names = tuple(f.name for f in ended)
    if ended or failed:
        level = worst(ended)
        result = level if level != "none" else "not taken"
        titles = [f.title for f in sorted(ended, key=lambda f: f.severity != level)] or [failed[0].reason]
        more = len(ended) + len(failed) - 1
        why = _sentence(titles[0]) + (f" ({more:,} more such attack{'s' * (more > 1)} ran to the end.)" if more else "")
        return ScopeRow(attack, "measured", result, names, why)
    if guarantee and attack.bounded:
        return ScopeRow(attack, "proved", "", (), f"Bounded by the private training: {_sentence(guarantee)}")
    open_ones = [f.meaning for f in found] + [skip.reason for skip in left if skip.state == "inconclusive"]
    if open_ones:
        return ScopeRow(attack, "tried too briefly", "inconclusive", (), _sentence(open_ones[0]))
    unfit = [skip.reason for skip in left if skip.ending == "does not fit"]
    unfit.sort(key=lambda reason: reason in from_file)  # why an attack does not fit says more than an empty file
    why = attack.absent or (unfit[0] if unfit else "No attack of this class is part of this audit.")
    return ScopeRow(attack, "not covered", "", (), _sentence(why))


def _belongs(name: str, attack: AttackClass) -> bool:
    return any(name.startswith(_PREFIXES[question]) for question in attack.questions)


def _sentence(text: str) -> str:
    text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "!", "?")) else text + "."
