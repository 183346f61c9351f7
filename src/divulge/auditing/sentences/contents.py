"""Sentences about what the file of a model contains."""

from __future__ import annotations

from divulge.auditing.wording import count
from divulge.report.findings import Outcome


def records_title(rows: int, where: str) -> str:
    """The title where whole records stand in the file."""
    stands = "stands" if rows == 1 else "stand"
    return f"{count(rows, 'training record')} {stands} in the file, in {where}"


def parts_title(rows: int, sums: int, values: int, categories: int, labels: int) -> str:
    """The title where the file holds no records as they are: how many there are of each kind, the two first."""
    said = [
        count(number, one, many)
        for number, one, many in (
            (rows, "training record, as features", "training records, as features"),
            (sums, "sum or mean of a column", "sums or means of columns"),
            (values, "value of a single record", "values of single records"),
            (categories, "category of the records", "categories of the records"),
            (labels, "label of a record", "labels of records"),
        )
        if number
    ]
    return f"The file holds {' and '.join(said[:2])}" if said else "The file holds nothing of the training records"


def meaning(outcome: Outcome) -> str:
    """What the contents of a file mean."""
    if outcome == "succeeded":
        return "Whoever gets the file reads these records: no query and no computation is needed."
    return (
        "Whoever gets the file reads these. Sums give an insider the missing record; extremes, and categories that "
        "only one record has, belong to single people."
    )


def certainty(held: int, equal: int | None) -> str:
    """What was checked of the records in a file: how many equal a training record, None where there was no data."""
    if equal is None:
        why = "no training data was given to compare it with" if held else "it holds no whole row to compare"
        return f"What is said of the file follows from how this kind of model is fitted; {why}."
    if equal == 0 and held:
        return (
            f"No row of the {held:,} equals a row of the training data that was given: the rows are "
            "features, or the data is not what the model was fitted to."
        )
    return f"Of {count(held, 'row')} in it {equal:,} equal a row of the training data that was given, to rounding."


def other_model() -> str:
    """What may be released instead of a model that keeps rows."""
    return (
        "Release answers instead of the file, or a model that keeps no rows (a linear model, a network, trees), "
        "trained with differential privacy if records must stay private."
    )


def public_preprocessing() -> str:
    """What to do about preprocessing steps that hold statistics of the records."""
    return "Fit scalers, encoders and imputers on public data, or with differential privacy, and keep them fixed."
