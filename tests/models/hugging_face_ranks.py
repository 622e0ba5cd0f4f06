"""Run by torchrun in test_hugging_face.py: the same script on every rank."""

import sys
from pathlib import Path

import torch
from test_hugging_face import (  # type: ignore[import-not-found]
    N,
    Texts,
    arguments,
    bert,
    weights,
)

from sidelight.deep.hugging_face import PrivateTrainer

folder = Path(sys.argv[1])
trainer = PrivateTrainer(
    bert(), arguments(folder, save_strategy="steps", save_steps=2), train_dataset=Texts(N, 1), epsilon=2.0,
    delta=1e-4, random_state=0, eval_dataset=Texts(20, 2),
)  # fmt: skip
trainer.train()
trainer.save_model(str(folder / "out"))
found = {
    "weights": weights(trainer.model), "epsilon": trainer.privacy_.epsilon, "scores": trainer.evaluate(),
    "batch": trainer.private_ and trainer.private_.expected_batch_size,
}  # fmt: skip
torch.save(found, folder / f"rank-{trainer.args.process_index}.pt")
