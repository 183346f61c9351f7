"""Guards by name, for the command line and for plug-ins: ``guard("noise:0.01,round:4")(oracle)``.

A guard of the user's own joins the built-in ones by an entry point of the group ``divulge.guards`` in its package, or
by ``register``. Either way it is a ``GuardParser``: it reads the texts that follow the name and returns a function that
puts the guard in front of an oracle.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from divulge.core.errors import InvalidInput
from divulge.core.plugins import installed
from divulge.oracles.base import Oracle
from divulge.oracles.guards.label_only import LabelOnly
from divulge.oracles.guards.noisy import Noisy
from divulge.oracles.guards.rounded import Rounded
from divulge.oracles.guards.smoothed import Smoothed
from divulge.oracles.guards.top_k import TopK

ENTRY_POINTS = "divulge.guards"
Wrapper: TypeAlias = Callable[[Oracle], Oracle]


class GuardParser(Protocol):
    """What a name on the command line stands for: ``parser(["0.1"], seed)`` for ``NAME:0.1``."""

    def __call__(self, arguments: Sequence[str], seed: int | None) -> Wrapper: ...


def guard(text: str, *, seed: int | None = 0) -> Wrapper:
    """A function that puts the named guards in front of an oracle.

    Parameters
    ----------
    text : str
        Guards separated by commas; the first stands closest to the model. Each is a name and its arguments:
        ``round:DIGITS``, ``noise:SIGMA[:fixed]``, ``smoothgrad:SIGMA[:SAMPLES]``, ``label``, ``top:K``,
        ``logit-bias:K``, ``saliency[:signed]``, ``integrated-gradients[:STEPS]``, or the name of a plug-in.
    seed : int or None, default 0
        Fixes what the guards draw, for tests and experiments; the second guard draws from ``seed + 1``, and so on.
        Whoever guesses the seed can subtract the noise. None draws from a secret source, as a server must.

    Returns
    -------
    callable
        Takes an Oracle and returns the guarded Oracle.

    Raises
    ------
    InvalidInput
        If there is no such guard, or its arguments are not what it takes.

    Examples
    --------
    >>> import divulge
    >>> from divulge.oracles import guard
    >>> oracle = divulge.oracle(lambda X: X.sum(1), input_shape=(2,))
    >>> guard("top:1,round:0")(oracle).value([[1.0, 0.27]])
    tensor([[1.]], dtype=torch.float64)
    """
    wrappers = [
        _parsed(part.strip(), None if seed is None else seed + place) for place, part in enumerate(text.split(","))
    ]

    def put_in_front(oracle: Oracle) -> Oracle:
        for wrap in wrappers:
            oracle = wrap(oracle)
        return oracle

    return put_in_front


def register(name: str, parser: GuardParser, *, form: str | None = None) -> None:
    """Add a guard of your own, so that ``guard`` and ``--guard`` know it by name.

    A package does the same without a call by an entry point of the group ``divulge.guards``, whose name is the guard's
    name and whose object is the parser.

    Parameters
    ----------
    name : str
        The guard's name: letters, digits and hyphens. A name that is taken is refused.
    parser : callable
        ``parser(arguments, seed)`` takes the texts after the name, and the seed or None for a secret source, and
        returns a function from Oracle to Oracle. A
        ValueError that it raises is shown as a refusal of the arguments.
    form : str or None, default None
        How the guard is written, such as ``"clip:LIMIT"``, for error messages.

    Raises
    ------
    InvalidInput
        If the name is taken or cannot be written in a list of guards.

    Examples
    --------
    >>> import divulge
    >>> from divulge.oracles import Guard, guards
    >>> class Clipped(Guard):
    ...     def __init__(self, oracle, limit):
    ...         super().__init__(oracle)
    ...         self.limit = limit
    ...     def _value(self, X):
    ...         return super()._value(X).clamp(-self.limit, self.limit)
    >>> def parse(arguments, seed):
    ...     (limit,) = map(float, arguments)
    ...     return lambda oracle: Clipped(oracle, limit)
    >>> guards.register("clip", parse, form="clip:LIMIT")
    >>> oracle = divulge.oracle(lambda X: X.sum(1), input_shape=(2,))
    >>> guards.guard("clip:2")(oracle).value([[1.0, 3.0]])
    tensor([[2.]], dtype=torch.float64)
    >>> guards.unregister("clip")
    """
    if not name.replace("-", "").isalnum():
        raise InvalidInput(f"A guard is named by letters, digits and hyphens, not {name!r}.")
    if name in _known():
        raise InvalidInput(f"There is a guard {name!r} already; choose another name.")
    _REGISTERED[name] = (parser, form or name)


def unregister(name: str) -> None:
    """Remove a guard that ``register`` added.

    Parameters
    ----------
    name : str
        The name it was registered under. An unknown name is ignored.

    Examples
    --------
    >>> import divulge
    >>> divulge.oracles.guards.unregister("never registered")
    """
    _REGISTERED.pop(name, None)


def _parsed(text: str, seed: int | None) -> Wrapper:
    name, *arguments = text.split(":")
    known = _known()
    forms = ", ".join(form for _, form in known.values())
    if name not in known:
        raise InvalidInput(f"There is no guard {text!r}; write {forms}, several separated by commas.")
    try:
        return known[name][0](arguments, seed)
    except InvalidInput:
        raise
    except ValueError as error:
        raise InvalidInput(
            f"The guard {text!r} does not hold the numbers it should; write {known[name][1]}."
        ) from error


def _known() -> dict[str, tuple[GuardParser, str]]:
    plugins = {name: (parser, name) for name, parser in installed(ENTRY_POINTS).items()}
    return {**plugins, **_BUILT_IN, **_REGISTERED}


# -- the built-in guards ----------------------------------------------------------------------------------------------


def _rounded(arguments: Sequence[str], seed: int | None) -> Wrapper:
    (digits,) = map(int, arguments)
    return lambda oracle: Rounded(oracle, digits)


def _noisy(arguments: Sequence[str], seed: int | None) -> Wrapper:
    sigma, *how = arguments
    if how not in ([], ["fixed"]):
        raise ValueError(arguments)
    deviation = float(sigma)
    return lambda oracle: Noisy(oracle, deviation, seed, fixed=bool(how))


def _smoothed(arguments: Sequence[str], seed: int | None) -> Wrapper:
    sigma, samples = arguments if len(arguments) == 2 else (*arguments, "50")
    deviation, count = float(sigma), int(samples)
    return lambda oracle: Smoothed(oracle, deviation, count, seed)


def _label_only(arguments: Sequence[str], seed: int | None) -> Wrapper:
    () = arguments
    return LabelOnly


def _top_k(arguments: Sequence[str], seed: int | None) -> Wrapper:
    (k,) = map(int, arguments)
    return lambda oracle: TopK(oracle, k)


def _logit_bias(arguments: Sequence[str], seed: int | None) -> Wrapper:
    from divulge.oracles.guards.logit_bias import LogitBias

    (k,) = map(int, arguments)
    return lambda oracle: LogitBias(oracle, k)


def _saliency(arguments: Sequence[str], seed: int | None) -> Wrapper:
    from divulge.oracles.guards.explained import Explained

    if list(arguments) not in ([], ["signed"]):
        raise ValueError(arguments)
    return lambda oracle: Explained(oracle, "saliency", absolute=not arguments)


def _integrated_gradients(arguments: Sequence[str], seed: int | None) -> Wrapper:
    from divulge.oracles.guards.explained import Explained

    (steps,) = map(int, arguments or ["50"])
    return lambda oracle: Explained(oracle, "integrated-gradients", steps=steps)


_BUILT_IN: dict[str, tuple[GuardParser, str]] = {
    "round": (_rounded, "round:DIGITS"),
    "noise": (_noisy, "noise:SIGMA[:fixed]"),
    "smoothgrad": (_smoothed, "smoothgrad:SIGMA[:SAMPLES]"),
    "label": (_label_only, "label"),
    "top": (_top_k, "top:K"),
    "logit-bias": (_logit_bias, "logit-bias:K"),
    "saliency": (_saliency, "saliency[:signed]"),
    "integrated-gradients": (_integrated_gradients, "integrated-gradients[:STEPS]"),
}
_REGISTERED: dict[str, tuple[GuardParser, str]] = {}
