"""How severe a finding is: the written rule of docs/severity.md, in one place."""

from __future__ import annotations

from divulge.report.findings import REMOTE, Adversary, Outcome, Question, Severity


def severity_of(question: Question, adversary: Adversary | None, outcome: Outcome) -> Severity:
    """Apply the written rule: what was taken, and who could take it.

    Parameters
    ----------
    question : {"contents", "copy", "span", "training-data", "informed", "membership", "attributes", "protection"}
        What the attack is after.
    adversary : str or None
        Who attacks; None for advice on protection.
    outcome : {"succeeded", "partly", "failed", "inconclusive"}
        What came of it.

    Returns
    -------
    {"critical", "high", "medium", "low", "none"}
        The severity.

    Examples
    --------
    >>> from divulge.auditing import severity_of
    >>> severity_of("training-data", "prediction client", "succeeded")
    'critical'
    >>> severity_of("copy", "prediction client", "failed")
    'none'
    """
    if outcome in ("failed", "inconclusive") or question == "protection" or adversary is None:
        return "none"
    if question == "contents":
        return "critical" if outcome == "succeeded" else "medium"
    remote = adversary in REMOTE
    if question in ("training-data", "informed"):
        if outcome == "succeeded":
            return "critical" if remote else "high"
        return "high" if remote else "medium"
    if question in ("membership", "attributes"):
        return ("high" if remote else "medium") if outcome == "succeeded" else "low"
    if question == "copy":
        return "high" if outcome == "succeeded" else "medium"
    return "medium" if outcome == "succeeded" else "low"
