# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's Trainer with a small GPT-2 of random weights. --hook SPEC: a hook of gradwire's."""
import torch
from common import STEPS, Report, arguments
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

args = arguments(hook="")
if args.backend == "gradwire":
    from gradwire.integrations.accelerate import start

    start()
ROWS, LENGTH = 8, 32
report = Report(args.folder)


class Sequences(torch.utils.data.Dataset):
    """Sequences that count upwards modulo 97, from random starts."""

    def __init__(self):
        starts = torch.randint(97, (2 * STEPS * ROWS, 1), generator=torch.Generator().manual_seed(2))
        self.rows = (starts + torch.arange(LENGTH)) % 97

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


class Noted(TrainerCallback):
    def on_log(self, arguments, state, control, logs=None, **_):
        if "loss" in logs:  # of all ranks, which only rank 0 logs to its screen; each has the number
            report.step(logs["loss"])


torch.manual_seed(1)
model = GPT2LMHeadModel(GPT2Config(vocab_size=97, n_positions=LENGTH, n_embd=256, n_layer=2, n_head=4,
                                   resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))
trainer = Trainer(
    model=model,
    args=TrainingArguments(output_dir=str(args.folder / "out"), use_cpu=True, max_steps=STEPS, per_device_train_batch_size=ROWS,
                           learning_rate=1e-3, logging_steps=1, logging_nan_inf_filter=False, save_strategy="no",
                           report_to=[], disable_tqdm=True),
    train_dataset=Sequences(),
    callbacks=[Noted()],
)
if args.hook:
    from gradwire.integrations.accelerate import use_hook

    use_hook(trainer.accelerator, args.hook)
trainer.train()
report.write(backend=torch.distributed.get_backend())
torch.distributed.destroy_process_group()
