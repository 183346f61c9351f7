"""Which attributes of a fitted scikit-learn estimator come from training records, by the class that sets them.

Every entry follows from the documentation of the class. A class is found by its name among the bases of the estimator,
so that classes derived from it are known too.
"""

from __future__ import annotations

from typing import NamedTuple

from divulge.contents.result import HoldingKind


class Attribute(NamedTuple):
    """An attribute, what it holds, and what that is in one sentence."""

    name: str
    kind: HoldingKind
    detail: str


_ALL_ROWS = "Every row that it was fitted to."
ATTRIBUTES: dict[str, tuple[Attribute, ...]] = {
    # -- rows of the training table
    "NeighborsBase": (
        Attribute("_fit_X", "records", _ALL_ROWS),
        Attribute("_y", "labels", "The label of every row that it was fitted to."),
    ),
    "KNNImputer": (Attribute("_fit_X", "records", _ALL_ROWS),),
    "BaseLibSVM": (Attribute("support_vectors_", "records", "The rows at the margin: its support vectors."),),
    "KernelRidge": (Attribute("X_fit_", "records", _ALL_ROWS),),
    "GaussianProcessRegressor": (
        Attribute("X_train_", "records", _ALL_ROWS),
        Attribute("y_train_", "labels", "The target of every row that it was fitted to, scaled."),
    ),
    "_BinaryGaussianProcessClassifierLaplace": (
        Attribute("X_train_", "records", _ALL_ROWS),
        Attribute("y_train_", "labels", "The label of every row that it was fitted to."),
    ),
    "KernelPCA": (Attribute("X_fit_", "records", _ALL_ROWS),),
    "BaseLabelPropagation": (
        Attribute("X_", "records", _ALL_ROWS),
        Attribute("transduction_", "labels", "The label of every row that it was fitted to."),
    ),
    "Nystroem": (Attribute("components_", "records", "The rows that its kernel is computed with."),),
    "DBSCAN": (Attribute("components_", "records", "The rows in the core of its clusters."),),
    "AffinityPropagation": (Attribute("cluster_centers_", "records", "The rows that stand for its clusters."),),
    "KernelDensity": (Attribute("tree_", "records", _ALL_ROWS),),
    "UMAP": (Attribute("_raw_data", "records", _ALL_ROWS),),
    # -- sums and means
    "StandardScaler": (Attribute("mean_", "sums", "The mean of every column."),),
    "PCA": (Attribute("mean_", "sums", "The mean of every column."),),
    "IncrementalPCA": (Attribute("mean_", "sums", "The mean of every column."),),
    "GaussianNB": (Attribute("theta_", "sums", "The mean of every column, class by class."),),
    "_BaseDiscreteNB": (Attribute("feature_count_", "sums", "The sum of every column, class by class."),),
    "CategoricalNB": (Attribute("category_count_", "counts", "How often each category occurs, class by class."),),
    "LinearDiscriminantAnalysis": (Attribute("means_", "sums", "The mean of every column, class by class."),),
    "QuadraticDiscriminantAnalysis": (Attribute("means_", "sums", "The mean of every column, class by class."),),
    "NearestCentroid": (Attribute("centroids_", "sums", "The mean (or median) of every column, class by class."),),
    "_BaseKMeans": (Attribute("cluster_centers_", "sums", "The mean of every column, cluster by cluster."),),
    "GaussianMixture": (Attribute("means_", "sums", "The mean of every column, component by component."),),
    "EmpiricalCovariance": (Attribute("location_", "sums", "The mean of every column."),),
    "TargetEncoder": (
        Attribute("encodings_", "sums", "The mean target of every category, smoothed."),
        Attribute("categories_", "categories", "Every category that occurs in the records."),
    ),
    "DummyRegressor": (Attribute("constant_", "sums", "The mean (or a quantile) of the targets."),),
    # -- values that a single record has
    "MinMaxScaler": (
        Attribute("data_min_", "values", "The smallest value of every column."),
        Attribute("data_max_", "values", "The largest value of every column."),
    ),
    "MaxAbsScaler": (Attribute("max_abs_", "values", "The largest absolute value of every column."),),
    "RobustScaler": (Attribute("center_", "values", "The median of every column."),),
    "QuantileTransformer": (Attribute("quantiles_", "values", "Quantiles of every column; all values of small data."),),
    "KBinsDiscretizer": (Attribute("bin_edges_", "values", "The edges of its bins, with smallest and largest value."),),
    "IsotonicRegression": (Attribute("X_thresholds_", "values", "Inputs at which its steps lie."),),
    "SimpleImputer": (Attribute("statistics_", "values", "What stands for missing values, column by column."),),
    # -- categories and words
    "OneHotEncoder": (Attribute("categories_", "categories", "Every category that occurs in the records."),),
    "OrdinalEncoder": (Attribute("categories_", "categories", "Every category that occurs in the records."),),
    "MultiLabelBinarizer": (Attribute("classes_", "categories", "Every label that occurs in the records."),),
    "CountVectorizer": (Attribute("vocabulary_", "categories", "Every word that it kept of the training texts."),),
    "DictVectorizer": (Attribute("vocabulary_", "categories", "Every name and value that occurs in the records."),),
    # -- what single records were predicted
    "SelfTrainingClassifier": (Attribute("transduction_", "labels", "The label of every row that it was fitted to."),),
    "BaseForest": (
        Attribute("oob_decision_function_", "labels", "What every training row is predicted without it."),
        Attribute("oob_prediction_", "labels", "What every training row is predicted without it."),
    ),
}  # fmt: skip
PRECOMPUTED = ("metric", "kernel", "affinity")
"""Parameters that say, by the value "precomputed", that an estimator holds distances or a kernel and no rows."""


def attributes_of(estimator: object) -> list[Attribute]:
    """The attributes of this estimator that come from training records."""
    names = [base.__name__ for base in type(estimator).__mro__]
    found = [attribute for name in names for attribute in ATTRIBUTES.get(name, ())]
    return [a for a in dict.fromkeys(found) if getattr(estimator, a.name, None) is not None]
