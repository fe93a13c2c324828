# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Programs of PyTorch's own parts over the backend "gradwire" train to the losses that they train to over Gloo.

The losses of the whole batch are compared step by step, to a relative 1e-5: float32, summed in another order.
"""
import json
import pathlib
import shutil

import pytest

HERE = pathlib.Path(__file__).parent
GUARD = 500


@pytest.fixture
def run_program(run_script, tmp_path, monkeypatch):
    """Runs one of the programs beside this file on `size` processes; what rank 0 reported."""
    monkeypatch.setenv("PYTHONWARNINGS", "ignore")  # names that torch calls by others from version to version
    shutil.copy(HERE / "torch_programs.py", tmp_path)

    def run(name, size, *arguments):
        processes = run_script((HERE / name).read_text(), size, *arguments, anew=True)
        outputs = [process.communicate(timeout=GUARD)[0] for process in processes]
        assert all(process.returncode == 0 for process in processes), "\n".join(outputs)
        return json.loads(outputs[0].splitlines()[-1])

    return run


def assert_same(expected, found, what):
    assert expected[-1] < expected[0], (what, "does not learn", expected)
    for step, (a, b) in enumerate(zip(expected, found, strict=True)):
        assert abs(a - b) <= 1e-5 * abs(a), (what, step, expected, found)


def assert_as_over_gloo(results):
    assert results["gloo"].keys() == results["gradwire"].keys()
    for what, losses in results["gloo"].items():
        assert_same(losses, results["gradwire"][what], what)


def test_sharding_meshes_and_a_checkpoint_that_fewer_ranks_go_on_from(run_program):
    results = run_program("program_sharded.py", 4)
    assert_as_over_gloo(results)
    # The batch is the same on any number of ranks, and AdamW is AdamW however its state is sharded.
    for what in ("shards, then half the ranks", "replicated shards", "flat shards", "zero"):
        assert_same(results["gradwire"]["shards"], results["gradwire"][what], what)


def test_groups_objects_functional_collectives_and_groups_of_either_library(run_program):
    losses = run_program("program_groups.py", 4)
    assert_same(losses["plain"], losses["from_c10d"], "gradwire's DDP over a group of torch.distributed")
    assert_same(losses["plain"], losses["to_c10d"], "PyTorch's DDP over a group of gradwire")


def test_compiled_programs(run_program):
    results = run_program("program_compiled.py", 2, "aot_eager")
    assert_as_over_gloo(results)
    ours = results["gradwire"]
    assert_same(ours["wide"], ours["compiled ddp"], "torch.compile of DDP")
    assert_same(ours["narrow"], ours["ddp of a compiled model"], "DDP of a compiled model")
    assert_same(ours["narrow"], ours["compiled fsdp"], "torch.compile of FSDP")
