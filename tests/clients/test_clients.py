# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Training libraries over the backend "gradwire", two ranks on one host: the losses are those over Gloo.

None of the programs imports gradwire, but for what its library needs gradwire.integrations for: the package's entry point
makes the backend known.
"""
from __future__ import annotations

import importlib.metadata

from conftest import assert_learns


def version(name: str) -> str:
    return f"{name} {importlib.metadata.version(name)}"


def backends(runs):
    return [rank["backend"] for run in runs for rank in run.ranks]


BOTH = ["gloo"] * 2 + ["gradwire"] * 2


def test_ddp(compare):
    compare(f"PyTorch's DDP under torchrun, torch {importlib.metadata.version('torch')}", "ddp.py")


def test_torchrun_restarts(run):
    """A rank dies in the first attempt; in the second, the ranks meet again in the store of the same agent, and train."""
    plain = run("ddp.py", "gradwire")
    again = run("ddp.py", "gradwire", "--fail", "1", launcher=("--max-restarts", "2"))
    assert [rank["attempt"] for rank in again.ranks] == [1, 1]
    assert again.losses() == plain.losses()


def test_lightning(compare):
    runs = compare(f"PyTorch Lightning, {version('lightning')}", "lightning_program.py")
    assert backends(runs) == BOTH


def test_lightning_strategy_by_name_and_hook_by_spec(run):
    plain = run("lightning_program.py", "gradwire", "--strategy", "gradwire")
    assert backends([plain]) == ["gradwire"] * 2
    assert_learns(plain)
    hooked = run("lightning_program.py", "gradwire", "--hook", "int8")
    assert_learns(hooked)
    assert hooked.losses() != plain.losses()  # eight bits are not 32: the hook was not dropped


def test_accelerate(compare):
    runs = compare(f"Accelerate, {version('accelerate')}", "accelerate_program.py")
    assert backends(runs) == BOTH
    assert all(rank["seen"] == [30, 30] for each in runs for rank in each.ranks)


def test_accelerate_hook(run):
    plain, hooked = run("accelerate_program.py", "gradwire"), run("accelerate_program.py", "gradwire", "--hook", "int8")
    assert_learns(hooked)
    assert hooked.losses() != plain.losses()


def test_trainer(compare):
    runs = compare(f"Hugging Face's Trainer, {version('transformers')}", "trainer_program.py")
    assert backends(runs) == BOTH


def test_trainer_hook(run):
    plain, hooked = run("trainer_program.py", "gradwire"), run("trainer_program.py", "gradwire", "--hook", "int8")
    assert_learns(hooked)
    assert hooked.losses() != plain.losses()


def test_deepspeed_zero_2(compare):
    runs = compare(f"DeepSpeed ZeRO 2, {version('deepspeed')}", "deepspeed_program.py", "--stage", "2")
    assert backends(runs) == BOTH


def test_deepspeed_zero_3(compare):
    runs = compare("DeepSpeed ZeRO 3", "deepspeed_program.py", "--stage", "3")
    assert backends(runs) == BOTH


def test_ray_train(compare):
    runs = compare(f"Ray Train, {version('ray')}", "ray_program.py", launcher=None)
    assert backends(runs) == BOTH


def test_torchft(compare):
    compare(f"torchft, {version('torchft')}", "torchft_program.py")


def test_torchft_goes_on_without_a_replica(run):
    survivor = run("torchft_program.py", "gradwire", "--die", "10", ranks=(0,))
    participants = survivor.ranks[0]["participants"]
    # How long the survivor counts the other one depends on the machine.
    assert 2 in participants and participants[-1] == 1
    assert_learns(survivor)


def test_torchmetrics(compare):
    gloo, ours = compare(f"torchmetrics, {version('torchmetrics')}", "torchmetrics_program.py", learns=False)
    assert [rank["values"] for rank in gloo.ranks] == [rank["values"] for rank in ours.ranks]
    assert gloo.ranks[0]["values"] == gloo.ranks[1]["values"]
