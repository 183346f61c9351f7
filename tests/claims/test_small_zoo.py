"""What an audit claims of a model holds on rows that the audit was not given: one test for each model."""

from __future__ import annotations

import pytest
from experiments.claims import checks
from experiments.claims.recording import audited
from experiments.claims.zoo import MODELS

SECONDS = 6.0
SMALL_ZOO = (
    "ridge, diabetes",
    "logistic regression, cancer",
    "softmax regression, wine",
    "min-max and logistic regression",
    "SVR, diabetes",
    "neighbours, cancer",
    "extra trees, diabetes",
    "perceptron of 16, cancer",
    "saturated tanh",
    "saw-tooth",
    "constant target",
    "logistic regression, rare class",
)


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL_ZOO)
def test_nothing_that_the_audit_claims_is_false(name):
    subject = MODELS[name]()
    claims = checks.check(audited(subject, time_allowed=SECONDS), subject, rerun=False)
    assert len(claims) >= 10
    assert not [f"{one.where}: {one.claim} | {one.measured}" for one in checks.wrong(claims)]
