"""Features learned on public records alone, for the private linear models.

    features = PatchFeatures(seed=0).fit(public_images)
    model = PrivateClassifier(epsilon=2, bounds=(-1, 1), centre="zero", fit_intercept=False)
    model.fit(features.transform(images), y, X_public=features.transform(public_images), y_public=y_public)

Needs the extra `sidelight[torch]`.
"""

from __future__ import annotations

try:
    import torch as _torch
except ImportError as error:
    from sidelight.errors import MissingDependency

    raise MissingDependency("features of images need PyTorch; pip install 'sidelight[torch]'") from error

from sidelight.features.patches import PatchFeatures

__all__ = ["PatchFeatures"]

del _torch
