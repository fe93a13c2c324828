# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""PyTorch Lightning. --strategy NAME: out of Lightning's registry; --hook SPEC: GradwireStrategy's."""
import lightning.pytorch as pl
import torch
from common import BATCH, Report, Samples, arguments, make_model
from lightning.pytorch.strategies import DDPStrategy

args = arguments(strategy="", hook="")
report = Report(args.folder)


class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = make_model()

    def training_step(self, batch, _):
        pictures, labels = batch
        loss = torch.nn.functional.cross_entropy(self.model(pictures), labels)
        self.log("loss", loss, sync_dist=True)
        self.log("samples", float(len(labels)), sync_dist=True)
        self.log("batches", torch.tensor(1), sync_dist=True, reduce_fx="sum")
        return loss

    def on_train_batch_end(self, outputs, batch, batch_idx):
        report.step(outputs["loss"])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.05)


strategy = args.strategy or DDPStrategy(process_group_backend=args.backend)
if args.strategy or args.hook:
    from gradwire.integrations.lightning import GradwireStrategy

    if args.hook:
        strategy = GradwireStrategy(hook=args.hook)
trainer = pl.Trainer(accelerator="cpu", devices=2, strategy=strategy, max_epochs=1, logger=False, enable_checkpointing=False,
                     enable_progress_bar=False, enable_model_summary=False)
trainer.fit(Module(), torch.utils.data.DataLoader(Samples(), BATCH, shuffle=False))
report.write(backend=torch.distributed.get_backend())
