# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""torchmetrics: metrics whose states are summed over the ranks, and gathered with other lengths on each rank."""
import torch
import torch.distributed as dist
from common import CLASSES, STEPS, Report, arguments
from torchmetrics import MeanMetric
from torchmetrics.classification import MulticlassAccuracy, MulticlassAUROC, MulticlassConfusionMatrix
from torchmetrics.regression import SpearmanCorrCoef

args = arguments()
dist.init_process_group(args.backend)
rank = dist.get_rank()
numbers = torch.Generator().manual_seed(3 + rank)
report = Report(args.folder)
metrics = {"accuracy": MulticlassAccuracy(CLASSES), "auroc": MulticlassAUROC(CLASSES), "mean": MeanMetric(),
           "confusion": MulticlassConfusionMatrix(CLASSES), "spearman": SpearmanCorrCoef()}
for step in range(STEPS):
    count = 5 + 3 * rank + step % 4
    scores = torch.rand(count, CLASSES, generator=numbers)
    labels = torch.randint(CLASSES, (count,), generator=numbers)
    for name, metric in metrics.items():
        if name == "mean":
            metric.update(scores)
        elif name == "spearman":
            metric.update(scores[:, 0], scores[:, 1])
        else:
            metric.update(scores, labels)
    report.step(metrics["accuracy"].compute())
values = {name: metric.compute().tolist() for name, metric in metrics.items()}
report.write(values=values)
dist.destroy_process_group()
