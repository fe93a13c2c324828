#!/usr/bin/env python3
# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's Trainer on several processes: a small GPT-2 of random weights learns to add, with compressed gradients if asked.

    torchrun --nproc-per-node 2 hugging_face_trainer.py --hook int8

(with PYTHONPATH=build/python, unless gradwire is installed). Two lines are gradwire's: start() and use_hook(). Nothing is downloaded.
"""
import argparse
import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from gradwire.integrations.accelerate import start, use_hook

# Digits are tokens; so are the signs.
SIGNS = "0123456789+="


class Sums(torch.utils.data.Dataset):
    """Rows like "12+34=046", as tokens. The loss counts what comes after the sign "="."""

    def __init__(self, count: int, seed: int) -> None:
        pairs = torch.randint(100, (count, 2), generator=torch.Generator().manual_seed(seed)).tolist()
        texts = [f"{a:02}+{b:02}={a + b:03}" for a, b in pairs]
        self.rows = torch.tensor([[SIGNS.index(sign) for sign in text] for text in texts])
        self.labels = self.rows.clone()
        self.labels[:, :6] = -100

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.rows[index], "labels": self.labels[index]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--hook", default="", help="a hook of gradwire with options; plain averaging without")
    arguments = parser.parse_args()

    start()  # the Trainer takes the group that it finds
    torch.manual_seed(1)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=len(SIGNS), n_positions=9, n_embd=128, n_layer=2, n_head=4,
                                       resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model=model,
            args=TrainingArguments(
                output_dir=folder, use_cpu=True, max_steps=arguments.steps, per_device_train_batch_size=32,
                learning_rate=2e-3, logging_steps=50, save_strategy="no", report_to=[], disable_tqdm=True,
            ),
            train_dataset=Sums(20_000, seed=1),
            eval_dataset=Sums(500, seed=2),
        )
        if arguments.hook:
            use_hook(trainer.accelerator, arguments.hook)
        trainer.train()
        result = trainer.evaluate()
    if torch.distributed.get_rank() == 0:
        print(f"loss {result['eval_loss']:.3f} for sums not seen before")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
