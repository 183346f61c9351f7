"""What other tools score, in an interpreter of their own: Privacy Meter, LeakPro, ART and SACRO-ML, by their own code.

Reads the folder named on the command line. ``signals.npz`` holds what one target and its reference models answer;
every tool scores the same records from the same models. ``table.npz`` holds a table in two halves and ``model.pkl`` an
estimator; SACRO-ML trains its own reference models. Prints one JSON object: the scores of each tool, or why it failed.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import io
import itertools
import json
import os
import pickle
import sys
import time
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np
from sklearn.pipeline import Pipeline


class Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands for packages (vision, plots) that a tool imports beside its scoring code and that are not installed."""

    def find_spec(self, name, path, target=None):
        if path is not None and not isinstance(sys.modules.get(name.split(".")[0]), MagicMock):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        module = MagicMock(name=spec.name)
        module.__path__, module.__spec__ = [], spec
        return module

    def exec_module(self, module):
        pass


class Seeded(Pipeline):
    """A pipeline that hands ``random_state``, which SACRO-ML sets on the model itself, to its last step."""

    def set_params(self, **params):
        if "random_state" in params:
            params[f"{self.steps[-1][0]}__random_state"] = params.pop("random_state")
        return super().set_params(**params)


def softmax(logits):
    away = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return away / away.sum(axis=-1, keepdims=True)


def privacy_meter(case):
    sys.path.insert(0, os.environ["PRIVACY_METER"])
    from modules.mia.attacks.rmia import run_rmia

    rows = np.arange(len(case["y"]))
    own = softmax(case["target"])[rows, case["y"]]
    references = softmax(case["references"])[:, rows, case["y"]].T
    others = np.arange(len(case["population_y"]))
    z_own = softmax(case["population_target"])[others, case["population_y"]]
    z_references = softmax(case["population_references"])[:, others, case["population_y"]].T
    return {
        f"Privacy Meter RMIA, a = {a}": run_rmia(own, references, case["inside"].T, z_own, z_references, a)
        for a in (0.3, 0.6)
    }


def leakpro(case):
    sys.path.insert(0, os.environ["LEAKPRO"])
    sys.meta_path.append(Absent())
    from leakpro.attacks.mia_attacks import lira as module

    scores = {}
    for online in (True, False):
        attack = object.__new__(type("Scored", (module.AttackLiRA,), {"audit_dataset": None}))
        attack.configs = module.AttackLiRA.AttackConfig(num_shadow_models=len(case["inside"]), online=online)
        attack.online, attack.num_shadow_models, attack.var_calculation = online, len(case["inside"]), "carlini"
        attack.fix_var_threshold = 32
        attack.out_indices = ~case["inside"]
        attack.shadow_models_logits = np.array([attack.rescale_logits(one, case["y"]) for one in case["references"]])
        attack.target_logits = attack.rescale_logits(case["target"].copy(), case["y"])
        members = int(case["members"])
        attack.audit_dataset = {"in_members": np.arange(members), "out_members": np.arange(members, len(case["y"]))}
        kept = []
        module.MIAResult = MagicMock(from_full_scores=lambda signal_values, kept=kept, **_: kept.append(signal_values))
        attack.run_attack()
        scores[f"LeakPro LiRA, {'online' if online else 'offline'}"] = np.asarray(kept[0]).reshape(-1)
    return scores


def art(case):
    from art.attacks.inference.membership_inference import MembershipInferenceBlackBox
    from art.estimators.classification.blackbox import BlackBoxClassifierNeuralNetwork

    k = case["target"].shape[1]
    dummy = BlackBoxClassifierNeuralNetwork(lambda x: np.zeros((len(x), k)), (1,), k)
    inside, predicted = case["inside"], softmax(case["references"]).astype(np.float32)
    seen = np.concatenate([one[held] for one, held in zip(predicted, inside, strict=True)])
    unseen = np.concatenate([one[~held] for one, held in zip(predicted, inside, strict=True)])
    seen_y = np.concatenate([case["y"][held] for held in inside])
    unseen_y = np.concatenate([case["y"][~held] for held in inside])
    scores = {}
    for kind in ("nn", "rf"):
        attack = MembershipInferenceBlackBox(dummy, attack_model_type=kind, nn_model_epochs=10)
        attack.fit(None, seen_y, None, unseen_y, pred=seen, test_pred=unseen)
        own = softmax(case["target"]).astype(np.float32)
        found = attack.infer(None, case["y"], pred=own, probabilities=True)
        scores[f"ART black box, {kind}"] = np.asarray(found).reshape(len(case["y"]), -1)[:, -1]
    return scores


def sacro(folder):
    from sacroml.attacks.likelihood_attack import LIRAAttack
    from sacroml.attacks.target import Target

    table = np.load(folder / "table.npz")
    model = pickle.loads((folder / "model.pkl").read_bytes())
    if isinstance(model, Pipeline):
        model.__class__ = Seeded
    target = Target(
        model=model, dataset_name="table", X_train=table["X"], y_train=table["y"], X_test=table["U"],
        y_test=table["v"], X_train_orig=table["X"], y_train_orig=table["y"], X_test_orig=table["U"],
        y_test_orig=table["v"],
    )  # fmt: skip
    scores = {}
    for mode in ("offline", "offline-carlini", "online-carlini"):
        attack = LIRAAttack(
            output_dir=str(folder / mode), write_report=False, n_shadow_models=int(table["shadows"]), mode=mode,
            fix_variance=True,
        )  # fmt: skip
        kept = []
        attack._save_attack_metrics = lambda scores, *rest, kept=kept: kept.append(np.asarray(scores)[:, 1])
        attack._make_report = lambda target: {}
        attack.attack(target)
        scores[f"SACRO-ML LiRA, {mode}"] = kept[0]
    return scores


def trained_by_privacy_meter(folder):
    """Seconds of processor time of Privacy Meter's own training loop for a few models."""
    import torch

    sys.path.insert(0, os.environ["PRIVACY_METER"])
    from trainers.default_trainer import train

    case = np.load(folder / "training.npz")
    data = torch.utils.data.TensorDataset(torch.as_tensor(case["X"]), torch.as_tensor(case["y"]))
    configs = {"epochs": int(case["epochs"]), "learning_rate": 0.05, "momentum": 0.9, "device": "cpu"}
    began = time.process_time()
    for part in case["parts"]:
        loader = torch.utils.data.DataLoader(
            torch.utils.data.Subset(data, part.tolist()), batch_size=int(case["batch"]), shuffle=True
        )
        widths = case["widths"].tolist()
        layers = [torch.nn.Flatten(), torch.nn.Linear(widths[0], widths[1])]
        for before, after in itertools.pairwise(widths[1:]):
            layers += [torch.nn.ReLU(), torch.nn.Linear(before, after)]
        train(torch.nn.Sequential(*layers), loader, configs)
    return {"seconds a model": [(time.process_time() - began) / len(case["parts"])]}


def main(folder):
    asked = sys.argv[2:]
    case = dict(np.load(folder / "signals.npz")) if (folder / "signals.npz").exists() else {}
    runs = {
        "privacy_meter": lambda: privacy_meter(case), "leakpro": lambda: leakpro(case), "art": lambda: art(case),
        "sacro": lambda: sacro(folder), "training": lambda: trained_by_privacy_meter(folder),
    }  # fmt: skip
    found, failed = {}, {}
    for name in asked:
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                found |= {tool: np.asarray(scores, dtype=float).tolist() for tool, scores in runs[name]().items()}
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {error}"[:200]
    print(json.dumps({"scores": found, "failed": failed}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
