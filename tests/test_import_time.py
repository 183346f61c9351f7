"""``import divulge`` and ``divulge --help`` stay quick: they load nothing heavy."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = {
    *("torch", "numpy", "scipy", "sklearn", "skimage", "matplotlib", "pandas", "onnx", "onnxruntime", "opacus"),
    *("dp_accounting", "dask", "distributed", "optuna", "httpx", "starlette", "uvicorn", "captum", "jinja2"),
}


@pytest.mark.parametrize("statement", ["import divulge", "import divulge.cli"])
def test_a_bare_import_loads_no_heavy_module(statement: str) -> None:
    script = f"import sys; {statement}; print(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    loaded = set(
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    )
    assert not loaded & HEAVY


@pytest.mark.slow
def test_every_public_name_can_be_reached() -> None:
    import divulge

    for name in divulge.__all__:
        assert getattr(divulge, name) is not None
    assert callable(divulge.audit)
    assert callable(divulge.oracle)
    with pytest.raises(AttributeError):
        divulge.nothing  # noqa: B018
    assert "audit" in dir(divulge)


def test_names_that_were_public_in_the_first_version_still_work() -> None:
    from divulge import datasets, errors, progress, training, workers

    assert datasets.recorded is datasets.training_rows
    assert issubclass(errors.BudgetExhausted, errors.DivulgeError)
    assert callable(progress.listening)
    assert callable(workers.run)
    assert training.Recipe is __import__("divulge").Recipe
