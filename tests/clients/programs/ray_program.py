# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Ray Train: this process starts the ranks, as Ray's workers; none of them imports gradwire."""
import ray
import torch
from common import STEPS, Report, arguments, batch, make_model
from ray.train import ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, prepare_model

args = arguments()


def train():
    rank = ray.train.get_context().get_world_rank()
    model = prepare_model(make_model())
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    report = Report(args.folder)
    for step in range(STEPS):
        pictures, labels = batch(step, rank)
        loss = torch.nn.functional.cross_entropy(model(pictures), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        report.step(loss.detach())
    report.write(backend=torch.distributed.get_backend())


ray.init(num_cpus=2, include_dashboard=False, log_to_driver=True)
TorchTrainer(train, torch_config=TorchConfig(backend=args.backend), scaling_config=ScalingConfig(num_workers=2)).fit()
ray.shutdown()
