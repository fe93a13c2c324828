# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's DDP, FSDP and distributed checkpoints over the backend "gradwire", whose ranks are on two hosts.

The bytes between hosts go over UCX. The losses are those that the same programs have over PyTorch's Gloo.
"""
import json
import pathlib
import shutil

import pytest
from test_torch_programs import assert_as_over_gloo, assert_same
from two_hosts import TwoHosts, why_not

HERE = pathlib.Path(__file__).parent
GUARD = 500
REASON = why_not()
pytestmark = pytest.mark.skipif(bool(REASON), reason=REASON)


@pytest.fixture
def hosts():
    made = TwoHosts()
    yield made
    made.close()


@pytest.fixture
def run_program(run_script, hosts, tmp_path, monkeypatch):
    """Runs one of the programs beside this file on 2x2 ranks, every other one on one host; what rank 0 reported."""
    monkeypatch.setenv("PYTHONWARNINGS", "ignore")  # names that torch calls by others from version to version
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth0")
    monkeypatch.setenv("GRADWIRE_LOG", "info")
    shutil.copy(HERE / "torch_programs.py", tmp_path)

    def run(name):
        processes = run_script((HERE / name).read_text(), 4, enter=lambda rank: hosts.enter(rank % 2))
        outputs = [process.communicate(timeout=GUARD)[0] for process in processes]
        assert all(process.returncode == 0 for process in processes), "\n".join(outputs)
        assert "backend ucx" in outputs[0] and "gloo crosses hosts" not in outputs[0], outputs[0]
        return json.loads(next(line for line in reversed(outputs[0].splitlines()) if line.startswith("{")))

    return run


def test_fsdp_meshes_and_a_checkpoint_that_one_rank_of_each_host_goes_on_from(run_program, hosts):
    before = [hosts.sent_bytes(host) for host in range(2)]
    results = run_program("program_sharded.py")
    assert_as_over_gloo(results)
    assert all(hosts.sent_bytes(host) - before[host] > 100_000 for host in range(2)), "the bytes went another way"


def test_ddp_over_groups_of_either_library(run_program):
    losses = run_program("program_groups.py")
    assert_same(losses["plain"], losses["from_c10d"], "gradwire's DDP over a group of torch.distributed")
    assert_same(losses["plain"], losses["to_c10d"], "PyTorch's DDP over a group of gradwire")
