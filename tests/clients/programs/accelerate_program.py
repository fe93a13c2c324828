# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Accelerate. --hook SPEC: a hook of gradwire's."""
import torch
from accelerate import Accelerator
from common import BATCH, Report, Samples, arguments, make_model

args = arguments(hook="")
if args.backend == "gradwire":
    from gradwire.integrations.accelerate import start

    start()
accelerator = Accelerator(cpu=True)
if args.hook:
    from gradwire.integrations.accelerate import use_hook

    use_hook(accelerator, args.hook)
model = make_model()
loader = torch.utils.data.DataLoader(Samples(), BATCH, shuffle=False)
model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.05), loader)
report = Report(args.folder)
for pictures, labels in loader:
    loss = torch.nn.functional.cross_entropy(model(pictures), labels)
    optimizer.zero_grad()
    accelerator.backward(loss)
    optimizer.step()
    report.step(loss.detach())
seen = accelerator.gather(torch.tensor([len(report.losses)])).tolist()
report.write(backend=torch.distributed.get_backend(), seen=seen)
accelerator.end_training()
