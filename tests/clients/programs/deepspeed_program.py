# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed on CPUs. --stage N: how much of the state ZeRO shards."""
import deepspeed
import torch
from common import BATCH, STEPS, Report, arguments, batch, make_model

args = arguments(stage=2)
deepspeed.init_distributed(args.backend)
model = make_model()
config = {
    "train_micro_batch_size_per_gpu": BATCH,
    "zero_optimization": {"stage": args.stage},
    "zero_allow_untested_optimizer": True,
    "zero_force_ds_cpu_optimizer": False,
}
engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.SGD(model.parameters(), 0.05), config=config)
report = Report(args.folder)
for step in range(STEPS):
    pictures, labels = batch(step, torch.distributed.get_rank())
    loss = torch.nn.functional.cross_entropy(engine(pictures), labels)
    engine.backward(loss)
    engine.step()
    report.step(loss.detach())
report.write(backend=torch.distributed.get_backend())
engine.destroy()
torch.distributed.destroy_process_group()
