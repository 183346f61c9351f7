"""A guarantee is claimed for noise that nobody can repeat, and says what it does not cover."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from divulge import Recipe
from divulge.core.errors import InvalidInput
from divulge.protection import epsilon_spent, guarantee_of, subsampled_bound
from divulge.training import Privacy

FULL = {"widths": [4, 3], "epochs": 40}
SAMPLED = {**FULL, "batch_size": 20}


@pytest.mark.slow
def test_full_batches_and_samples_are_accounted_for() -> None:
    full = guarantee_of(Recipe(**FULL, privacy=Privacy(noise_multiplier=5.0)))
    assert full is not None
    assert full.holds
    assert full.epsilon == pytest.approx(epsilon_spent(noise_multiplier=5.0, steps=40, delta=1e-5))
    assert full.bound(kappa=0.01) < 0.5
    sampled = guarantee_of(Recipe(**SAMPLED, privacy=Privacy(noise_multiplier=1.0, delta=1e-4)), rows=200)
    assert sampled is not None
    assert (sampled.schedule.steps, sampled.schedule.sampling_rate, sampled.delta) == (400, 0.1, 1e-4)
    assert sampled.bound(kappa=0.01) == pytest.approx(
        subsampled_bound(0.01, noise_multiplier=1.0, sampling_rate=0.1, steps=400)
    )


def test_seeded_noise_and_no_noise_give_no_guarantee(tmp_path: Path) -> None:
    for privacy, reason in (
        (Privacy(noise_multiplier=5.0, noise_seed=0), "seeded: no guarantee"),
        (Privacy(noise_multiplier=0.0), "no noise: no guarantee"),
    ):
        recipe = Recipe(**FULL, privacy=privacy)
        recipe.save(tmp_path)
        assert reason in (tmp_path / "recipe.json").read_text()
        for trained in (recipe, tmp_path):
            guarantee = guarantee_of(trained)
            assert guarantee is not None
            assert not guarantee.holds
            assert str(guarantee) == reason
            assert math.isinf(guarantee.epsilon)
            assert guarantee.as_dict()["epsilon"] is None
            assert guarantee.bound(kappa=0.01) == 1.0


def test_a_plain_recipe_has_none_and_batches_need_the_number_of_rows() -> None:
    assert guarantee_of(Recipe(**FULL)) is None
    with pytest.raises(InvalidInput, match="rows="):
        guarantee_of(Recipe(**SAMPLED, privacy=Privacy(noise_multiplier=1.0)))


@pytest.mark.slow
def test_a_folder_says_how_many_rows_there_were_and_what_is_not_covered(tmp_path: Path) -> None:
    from divulge.datasets.provenance import DataSelection

    recipe = Recipe(**SAMPLED, privacy=Privacy(noise_multiplier=1.0))
    recipe.save(tmp_path)
    for options, expected in (({}, 1), ({"centred": True}, 2), ({"bounds": (0, 10)}, 0)):
        choice = DataSelection(data="iris", **options)
        dataset = choice.dataset()
        choice.save(tmp_path, dataset)
        guarantee = guarantee_of(tmp_path)
        assert guarantee is not None
        assert guarantee.schedule.steps == 40 * math.ceil(len(dataset.train.y) / 20)
        assert len(guarantee.not_covered) == expected
