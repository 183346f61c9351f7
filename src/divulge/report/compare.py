"""What changed between two audits: for a new version of a model, before it replaces the old one.

Two audits can be compared attack by attack only where the attack ran to its end in both. Where it did not, the change
says so and claims nothing. Where the attack itself is another one, because another version of divulge made the second
audit, a difference is called that, and not a change of the model.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from divulge.core.errors import InvalidInput
from divulge.report.document import SCHEMA_VERSION
from divulge.report.findings import SEVERITIES

Verdict = Literal[
    "worse", "new", "new attack version", "undecided", "inconclusive", "not tried", "gone", "better", "same"
]
_ORDER: tuple[Verdict, ...] = get_args(Verdict)
_OPEN = ("inconclusive", "not tried")


@dataclass(frozen=True)
class Change:
    """One attack in two audits.

    Parameters
    ----------
    name, title : str
        The attack, and what came of it.
    before, after : str or None
        Its severity ("none" if nothing was taken), "inconclusive" or "not tried"; None where the attack does not fit.
    measures : dict
        The measures that differ, each with both values.
    attack_changed : bool, default False
        Whether the difference comes from the attack: another version of divulge attacked the same model, or only the
        later version knows the attack.
    why : str, default ""
        Why the second audit has no result of it, as that audit says.

    Examples
    --------
    >>> from divulge.report import Change
    >>> Change("copy-from-values", "Exact copy", "not tried", "high", {}).verdict
    'undecided'
    >>> Change("copy-from-values", "Exact copy", "high", "not tried", {}).verdict
    'not tried'
    """

    name: str
    title: str
    before: str | None
    after: str | None
    measures: dict[str, tuple[Any, Any]]
    attack_changed: bool = False
    why: str = ""

    @property
    def verdict(self) -> Verdict:
        """What changed.

        "worse", "better" or "same" where the attack ran to its end in both audits; "new" or "gone" where it fits only
        one of the models, or the access granted in only one of the audits; "not tried" or "inconclusive" where the
        second audit did not finish it; and "undecided" where only the second audit did, so that nobody knows whether it
        is new. "new attack version" where the attack differs and not the model.
        """
        if self.after in _OPEN:
            return "not tried" if self.after == "not tried" else "inconclusive"
        if self.after is None:
            return "gone"
        if self.attack_changed and self.before not in _OPEN and self.before != self.after:
            return "new attack version"
        if self.before is None:
            return "new"
        if self.before in _OPEN:
            return "undecided"
        step = _level(self.after) - _level(self.before)
        return "worse" if step > 0 else "better" if step < 0 else "same"

    @property
    def alarming(self) -> bool:
        """Whether something was taken that was not taken before, or that is more severe now."""
        if self.verdict == "new attack version":
            return self.after is not None and _level(self.after) > _level(self.before or "none")
        return self.verdict == "worse" or (self.verdict == "new" and self.after != "none")

    @property
    def open(self) -> bool:
        """Whether nobody can say if more is taken now."""
        if self.verdict == "undecided":
            return self.after != "none"
        return self.verdict in _OPEN


def compare(before: str | Path, after: str | Path) -> list[Change]:
    """Compare two audits attack by attack.

    Parameters
    ----------
    before, after : path
        report.json of each audit, or the folder that holds it.

    Returns
    -------
    list of Change
        Every attack that fits one of the models, the worst changes first.

    Raises
    ------
    InvalidInput
        If a file is not there, or is not a report of an audit.

    Examples
    --------
    >>> import tempfile
    >>> from divulge.report import Report, compare
    >>> report = Report({"name": "m", "kind": "a linear model"}, [], [], seconds=1.0, seed=0)
    >>> path = report.save(tempfile.mkdtemp() + "/report.json")
    >>> compare(path, path)
    []
    """
    first, second = (_document(path) for path in (before, after))
    old, new = (_fitting(document) for document in (first, second))
    changes = []
    for name in [*new, *(name for name in old if name not in new)]:
        a, b = old.get(name, {}), new.get(name, {})
        measures = {
            key: (a.get("measures", {}).get(key), b.get("measures", {}).get(key))
            for key in {**a.get("measures", {}), **b.get("measures", {})}
        }
        changed = {key: pair for key, pair in measures.items() if pair[0] != pair[1]} if a and b else {}
        other = _attack_changed(name, first, second)
        now, why = _standing(b), _reason(name, second)
        if not b and not why:
            now, why = "not tried", "The second audit does not name this attack."
        changes.append(Change(name, (b or a)["title"], _standing(a), now, changed, other, why))
    return sorted(changes, key=lambda change: _ORDER.index(change.verdict))


def _level(severity: str) -> int:
    return [str(level) for level in SEVERITIES].index(severity)


def _reason(name: str, document: dict[str, Any]) -> str:
    """Why an audit has no finding of an attack; empty where it has one, or does not name the attack."""
    return next((str(skip.get("reason", "")) for skip in document.get("skipped", []) if skip["name"] == name), "")


def _standing(attack: dict[str, Any]) -> str | None:
    """The severity of what the attack took, or why that is not known; None where it does not fit."""
    if not attack:
        return None
    if attack.get("ending") == "not tried":
        return "not tried"
    return "inconclusive" if attack.get("state") == "inconclusive" else str(attack.get("severity", "none"))


def standings(document: dict[str, Any]) -> dict[str, str]:
    """For each attack that fits the model: its severity, "not taken", "inconclusive" or "not tried"; no advice."""
    attacks = {name: attack for name, attack in _fitting(document).items() if attack.get("adversary", "") is not None}
    advice = {skip["name"] for skip in document.get("skipped", []) if skip.get("at_stake") == "none"}
    said = {name: str(_standing(attack)) for name, attack in attacks.items() if name not in advice}
    return {name: "not taken" if standing == "none" else standing for name, standing in said.items()}


def _document(path: str | Path) -> dict[str, Any]:
    """A report, of this version or an earlier one."""
    path = Path(path)
    path = path / "report.json" if path.is_dir() else path
    try:
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if document.get("schema_version", 0) > SCHEMA_VERSION:
            document = {**document, "findings": [_downgraded(finding) for finding in document["findings"]]}
        for attack in _fitting(document).values():
            if _standing(attack) not in (*_OPEN, *SEVERITIES) or not isinstance(attack["title"], str):
                raise ValueError(attack)
        if not isinstance(document.get("versions", {}), dict) or not isinstance(document.get("digests", {}), dict):
            raise ValueError(document)
    except FileNotFoundError as error:
        raise InvalidInput(f"{path} is not there; give the report.json that divulge audit wrote.") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidInput(f"{path} is not a report that divulge audit wrote.") from error
    return document


def _attack_changed(name: str, first: dict[str, Any], second: dict[str, Any]) -> bool:
    """Whether a difference comes from another version of the attack and not from the model."""
    versions = [document.get("versions", {}).get("divulge") for document in (first, second)]
    if versions[0] == versions[1]:
        return False
    named = {entry.get("name") for part in ("findings", "skipped") for entry in first.get(part, [])}
    digests = [document.get("digests", {}).get("model") for document in (first, second)]
    return name not in named or (digests[0] is not None and digests[0] == digests[1])


def _fitting(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    skipped = [_upgraded(skip) for skip in document.get("skipped", [])]
    fitting = [skip for skip in skipped if skip["ending"] != "does not fit"]
    return {attack["name"]: attack for attack in [*document["findings"], *fitting]}


def _downgraded(finding: dict[str, Any]) -> dict[str, Any]:
    """A finding of a later schema: where its severity is none of ours, nobody here can say what was taken."""
    return finding if finding.get("severity", "none") in SEVERITIES else {**finding, "state": "inconclusive"}


def _upgraded(skip: dict[str, Any]) -> dict[str, Any]:
    """An entry of the first version of the schema, which had no endings, as one of the second."""
    if "ending" in skip:
        return skip
    out_of_time = "time was used up" in skip["reason"] or "was stopped before" in skip["reason"]
    ending = "unfinished" if skip.get("tried") else "not tried" if out_of_time else "does not fit"
    return {**skip, "ending": ending, "state": None if ending == "does not fit" else "inconclusive"}
