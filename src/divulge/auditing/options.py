"""All options of an audit, in one place: the function, the command and the store share it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from divulge.core.memory import DEFAULT_GIB, LEAST_GIB
from divulge.core.validation import checked_number, checked_seed
from divulge.oracles import Access
from divulge.protection.price_curve import Limits

if TYPE_CHECKING:
    import pandas as pd
    from torch import nn

    from divulge.training import Recipe


@dataclass(frozen=True, eq=False, kw_only=True)
class AuditOptions:
    """The options of :func:`divulge.audit`, checked.

    Parameters
    ----------
    unseen : array or (array, array), optional
        Inputs like the training inputs that the model never saw: the control. With their labels, as ``(X, y)``,
        copies are also judged by correct answers, and members are told from others.
    recipe : Recipe, optional
        How the model was trained. The insider repeats the training with it.
    start : Module, path or Recipe, optional
        The checkpoint that the model was trained from, or the recipe whose seed gives it. The attacker holds it too.
    access : {"weights", "gradient", "value", "label"}, optional
        What the attacker may see. By default everything that the auditor can show: the weights of a local model,
        the values of a remote one.
    guard : str, default ""
        Defences in front of the model, such as ``"round:4"``.
    budget : int, optional
        Rows that each adversary may query.
    time : float, default 300.0
        Seconds that the whole audit may take, from when Python's modules are loaded.
    memory : float, default 4.0
        Gibibytes that the audit may use beyond what the process holds when it starts.
    seed : int, default 0
        Fixes every random choice.
    shape : sequence of int, optional
        (channels, height, width) where an input is a picture.
    columns : sequence of str, default ()
        Names of the inputs where they are the columns of a table.
    mean : array, optional
        What was subtracted from the inputs before training.
    table : pandas.DataFrame, optional
        Example rows of an estimator that takes a table of mixed columns; by default the training data, if that is one.
    name : str, optional
        What the report calls the model. By default the name of its file or class.
    price : float, optional
        Price of 1,000 queries, to show costs in money.
    out : path, optional
        Folder for findings as they are made. The same call continues from them.
    resume : bool, default False
        Refuse a folder that does not hold this audit, instead of replacing what it holds.
    trust_pickle : bool, default False
        Load pickled models. A pickle can run code.
    precision : {"native", "double"}, default "native"
        In which precision a local network answers.
    input_shape : sequence of int or mapping, optional
        Shape of one input, where a function or an endpoint does not say it; by name, for a model of several inputs.
    fixed : mapping, optional
        Inputs of an ONNX model that are the same for every row, by name, such as ``{"sr": 16000}``.
    output : str, optional
        The output to read, where the model has several.
    workers : int or str, optional
        Number of processes, ``"all"``, or the address of a Dask scheduler.
    journal : path, optional
        File that records the answers of a remote model.
    token_env : str, optional
        Environment variable with the token of a remote model.
    rate_limit : float, optional
        Requests a second that a remote model may be sent.
    request : str, dict or list, optional
        What a remote model with JSON of its own shape is sent, as for ``divulge.oracle``.
    response : str, optional
        Where its answer stands: a JSON pointer or a JMESPath expression.
    require : sequence of str, default ()
        Names of probes that run first. A gate is not met unless they ran to their end.
    show_records : bool, default False
        Whether the report shows training records and what was rebuilt of them.
    auditor : str, default ""
        Who makes the audit, for the sign-off summary.
    controls : sequence of str, default ()
        Controls that the owner declares, such as "1,000 queries a day". The report lists them as not tested.
    accept_membership_tpr : str, optional
        The share of members that may be found at a false positive rate, such as ``"0.05@0.01"``. With this or the next
        one the audit measures the price of protection and recommends an epsilon.
    accept_reconstruction : float, optional
        The chance of a reconstruction that is accepted.
    data_name : sequence of str, optional
        How the command line names the training data, for the commands in the report.

    Examples
    --------
    >>> from divulge.auditing import AuditOptions
    >>> AuditOptions(access="value", budget=1000).time
    300.0
    """

    unseen: object = None
    recipe: Recipe | None = None
    start: nn.Module | str | Path | Recipe | None = None
    access: Access | None = None
    guard: str = ""
    budget: int | None = None
    time: float = 300.0
    memory: float = DEFAULT_GIB
    seed: int = 0
    shape: Sequence[int] | None = None
    columns: Sequence[str] = ()
    mean: object = None
    table: pd.DataFrame | None = None
    name: str | None = None
    price: float | None = None
    out: str | Path | None = None
    resume: bool = False
    trust_pickle: bool = False
    precision: str = "native"
    input_shape: Sequence[int] | Mapping[str, Sequence[int]] | None = None
    fixed: Mapping[str, object] | None = None
    output: str | None = None
    workers: int | str | None = None
    journal: str | Path | None = None
    token_env: str | None = None
    rate_limit: float | None = None
    request: object = None
    response: str | None = None
    require: Sequence[str] = ()
    show_records: bool = False
    auditor: str = ""
    controls: Sequence[str] = ()
    accept_membership_tpr: str | None = None
    accept_reconstruction: float | None = None
    data_name: Sequence[str] | None = None

    def __post_init__(self) -> None:
        checked_number("time", self.time, above=0, hint="An audit needs time, as a number of seconds.")
        checked_number("memory", self.memory, at_least=LEAST_GIB, hint="It is a number of gibibytes.")
        if self.price is not None:
            checked_number("price", self.price, at_least=0)
        Limits.parse(self.accept_membership_tpr, self.accept_reconstruction)  # refuses what makes no sense
        object.__setattr__(self, "seed", checked_seed(self.seed))
