"""The PyTorch interface: train a network on private records, guided by public ones.

    trainer = Trainer(model, loss, method=dope_sgd(), epsilon=2, expected_batch_size=512, epochs=10)
    trainer.fit(private, public)

`PrivateStep` is one private step for a loop of one's own. Methods are those of the linear models: the same
files, the same one step. Needs the extra [torch].
"""

from __future__ import annotations

from sidelight.errors import MissingDependency

try:
    import safetensors as _safetensors
    import torch as _torch
except ImportError as error:
    raise MissingDependency(
        f"networks need PyTorch and safetensors, and {error.name} is not installed: "
        "pip install torch safetensors"
    ) from error

from sidelight.deep.batch_norm import replace_batch_norm
from sidelight.deep.checkpoint import Checkpoints
from sidelight.deep.diagnosis import Diagnosis, diagnose
from sidelight.deep.language import LabelLoss, TokenLoss, label_loss, next_token_loss, token_loss
from sidelight.deep.net_estimators import PrivateNetClassifier, PrivateNetRegressor
from sidelight.deep.network_parts import Ensemble, LastLayer, MajorityVote, MeanLogits
from sidelight.deep.step import PrivateStep
from sidelight.deep.trainer import Trainer
from sidelight.oracles.network import NetworkOracle
from sidelight.problems.datasets import Loading
from sidelight.problems.network_public import NetworkGuide
from sidelight.problems.public_training import PublicTraining

__all__ = [
    "Checkpoints",
    "Diagnosis",
    "Ensemble",
    "LabelLoss",
    "LastLayer",
    "Loading",
    "MajorityVote",
    "MeanLogits",
    "NetworkGuide",
    "NetworkOracle",
    "PrivateNetClassifier",
    "PrivateNetRegressor",
    "PrivateStep",
    "PublicTraining",
    "TokenLoss",
    "Trainer",
    "diagnose",
    "label_loss",
    "next_token_loss",
    "replace_batch_norm",
    "token_loss",
]

del _safetensors, _torch
