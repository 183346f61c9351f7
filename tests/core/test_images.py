"""Which inputs are pictures, and how their values are shown."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from divulge.core.images import as_picture, cosine_transform, declared_picture, picture_shape, stretched


@pytest.mark.parametrize(
    ("dim", "declared", "shape"),
    [
        (784, None, (1, 28, 28)), (3072, (3072,), (3, 32, 32)), (64, None, (1, 8, 8)), (49, None, None),
        (30, None, None), (12, (3, 2, 2), (3, 2, 2)), (12, (3, 4), (1, 3, 4)), (784, (2, 4, 98), (2, 4, 98)),
        (784, (10, 10), None),
    ],
)  # fmt: skip
def test_a_shape_is_the_declared_one_or_that_of_a_square(dim, declared, shape):
    assert picture_shape(dim, declared) == shape


def test_only_what_is_declared_counts_where_nothing_may_be_guessed():
    assert declared_picture(784, None) is declared_picture(784, (784,)) is None
    assert declared_picture(784, (28, 28)) == (1, 28, 28)


def test_each_scaling_brings_values_between_black_and_white():
    x = np.array([0.2, 0.4, 0.6, 0.4])
    assert as_picture(x, (2, 2)) == pytest.approx(np.array([[0, 0.5], [1, 0.5]]))
    assert as_picture(x, (1, 2, 2), scaling="fit") == pytest.approx(x.reshape(2, 2))  # already inside
    assert as_picture(5 * x - 1, (2, 2), scaling="fit").max() == 1.0
    assert as_picture(torch.tensor(5 * x - 1), (2, 2), scaling="clip") == pytest.approx(np.array([[0, 1], [1, 1]]))
    assert as_picture(np.ones(4), (2, 2)).max() == 0.0


def test_rows_are_stretched_each_for_itself():
    X = torch.tensor([[1.0, 2.0, 3.0], [0.0, 0.0, 10.0]])
    assert torch.equal(stretched(X, (-1, 1)), torch.tensor([[-1.0, 0.0, 1.0], [-1.0, -1.0, 1.0]]))


def test_the_cosine_transform_keeps_lengths():
    C = cosine_transform(7)
    assert torch.allclose(C @ C.T, torch.eye(7, dtype=C.dtype))
