#!/usr/bin/env python3
# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""A PyTorch Lightning module on several processes, with or without compressed gradients.

    python lightning_module.py --devices 2 --hook power_sgd:rank=4,start=20

(with PYTHONPATH=build/python, unless gradwire is installed). Lightning starts the other processes itself; torchrun works as well.
"""
import argparse

import lightning.pytorch as pl
import torch
from torch import nn

from gradwire.integrations.lightning import GradwireStrategy


class Spirals(torch.utils.data.Dataset):
    """Points on three noisy spirals: data that needs no download."""

    def __init__(self, count: int, seed: int) -> None:
        numbers = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(3, (count,), generator=numbers)
        radius = torch.rand(count, generator=numbers)
        angle = 4 * radius + 2.0944 * self.labels + 0.1 * torch.randn(count, generator=numbers)
        self.points = torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.points[index], self.labels[index]


class Classifier(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 3))

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], index: int) -> torch.Tensor:
        points, labels = batch
        return nn.functional.cross_entropy(self.layers(points), labels)

    def validation_step(self, batch: tuple[torch.Tensor, torch.Tensor], index: int) -> None:
        points, labels = batch
        right = (self.layers(points).argmax(1) == labels).float().mean()
        self.log("right", right, sync_dist=True)  # an average over the ranks

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), 1e-2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--hook", default="", help="a hook of gradwire with options; plain averaging without")
    arguments = parser.parse_args()

    pl.seed_everything(1)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=arguments.devices,
        strategy=GradwireStrategy(hook=arguments.hook),
        max_epochs=arguments.epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    model = Classifier()
    trainer.fit(model, torch.utils.data.DataLoader(Spirals(4096, seed=1), batch_size=64, shuffle=True))
    (result,) = trainer.validate(model, torch.utils.data.DataLoader(Spirals(1024, seed=2), batch_size=64), verbose=False)
    if trainer.is_global_zero:
        print(f"{100 * result['right']:.1f}% right")


if __name__ == "__main__":
    main()
