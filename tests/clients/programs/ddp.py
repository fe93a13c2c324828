# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's DistributedDataParallel, in a program that knows nothing of gradwire. --fail 1: rank 1's first attempt dies."""
import os

import torch
import torch.distributed as dist
from common import STEPS, Report, arguments, batch, make_model
from torch.nn.parallel import DistributedDataParallel

args = arguments(fail=0)
dist.init_process_group(args.backend)
rank, attempt = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
model = DistributedDataParallel(make_model())
optimizer = torch.optim.SGD(model.parameters(), 0.05)
report = Report(args.folder)
for step in range(STEPS):
    pictures, labels = batch(step, rank)
    loss = torch.nn.functional.cross_entropy(model(pictures), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    report.step(loss.detach())
    if args.fail and attempt == 0 and rank == 1 and step == 3:
        os._exit(17)
report.write(attempt=attempt)
dist.destroy_process_group()
