# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""What tests of DistributedDataParallel train, with a rank's own batches, and what they compare."""
import threading

import torch
from torch import nn

from gradwire import distributed as dist

SIZE = 2
# Ranks are threads, and share torch's generator.
generator_lock = threading.Lock()


def make_model(seed: int = 0) -> nn.Module:
    with generator_lock:
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 3))


def batch_of(rank: int) -> torch.Tensor:
    return torch.randn(5, 6, generator=torch.Generator().manual_seed(100 + rank))


def mean_gradients() -> list[torch.Tensor]:
    """What one process computes for the mean of all ranks' losses."""
    model = make_model()
    (sum(model(batch_of(rank)).square().sum() for rank in range(SIZE)) / SIZE).backward()
    return [parameter.grad for parameter in model.parameters()]


def gradients(ddp: nn.Module, group: dist.ProcessGroup, steps: int = 3) -> list[torch.Tensor]:
    for _ in range(steps):
        ddp.zero_grad()
        ddp(batch_of(group.rank())).square().sum().backward()
    return [parameter.grad.clone() for parameter in ddp.parameters()]


def assert_all_equal(results):
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def assert_averages(results, rtol=1e-5, atol=1e-6):
    assert_all_equal(results)
    for got, wanted in zip(results[0], mean_gradients(), strict=True):
        torch.testing.assert_close(got, wanted, rtol=rtol, atol=atol)
