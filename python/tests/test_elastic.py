# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""A training loop in Python that loses a rank and gets a new one."""
import collections
import os
import pathlib
import re
import signal
import subprocess
import sys

import pytest
import torch

import gradwire
import gradwire.distributed as dist
import program_elastic
import program_far_apart
import program_manager
import program_slow
from conftest import block_of
from gradwire._bytes import _on_own_device, join_value, split_value
from gradwire.distributed.optim import DilocoAverager, PostLocalSGDOptimizer, ZeroRedundancyOptimizer
from gradwire.distributed.optim._elastic_shards import _beside
from gradwire.nn.parallel import DistributedDataParallel

GUARD = 240
BUILD = pathlib.Path(os.environ.get("GRADWIRE_BUILD", pathlib.Path(__file__).resolve().parents[2] / "build"))
# How the programs begin that the tests write.
SMALL_JOB = """
import torch, gradwire.elastic
from gradwire.nn.parallel import DistributedDataParallel

elastic = gradwire.elastic.Elastic()
model = DistributedDataParallel(torch.nn.Linear(2, 1), process_group=elastic.group)
elastic.add(model)
"""


def serial_parameters(sizes, batches=lambda step, rank: 1):
    """The parameters when one process does each step for one of sizes[step] ranks after the other. batches: how many a rank has in
    a step; the optimizer steps after each, with zeros from the ranks that have none left."""
    model = program_elastic.network()
    optimizer, scheduler = program_elastic.optimizers(model)
    parameters = list(model.parameters())
    for step, size in enumerate(sizes):
        for k in range(max(batches(step, rank) for rank in range(size))):
            averages = [torch.zeros_like(parameter) for parameter in parameters]
            for rank in (rank for rank in range(size) if batches(step, rank) > k):
                loss = program_elastic.loss_of(model(program_elastic.samples(step + program_elastic.STEPS * k, rank, size)))
                parts = [part * (1 / size) for part in torch.autograd.grad(loss, parameters)]
                averages = [sum_ + part for sum_, part in zip(averages, parts, strict=True)]
            for parameter, average in zip(parameters, averages, strict=True):
                parameter.grad = average
            optimizer.step()
        scheduler.step()
    return parameters


def ends_of(folder, program, *arguments, ranks=2):
    """What the members of the job of `program`, which loses a rank and gets a new one, leave at the end, and what they print."""
    command = [str(BUILD / "bin" / "gradwire-run"), "--elastic", f"1:{ranks}", "-n", str(ranks), "--membership-log", str(folder / "log"),
               sys.executable, program.__file__, str(folder), *arguments]
    job = subprocess.run(command, capture_output=True, text=True, timeout=GUARD, check=False)
    assert job.returncode == 0, job.stderr
    assert "died of signal 9 (SIGKILL), and a new process takes its place" in job.stderr
    assert job.stdout.count(f"finished {program.STEPS}") == ranks, job.stdout
    ends = [torch.load(path, weights_only=True) for path in folder.glob("final-*")]
    assert len(ends) == ranks
    assert (folder / "log").read_text().startswith("gradwire membership journal")
    return ends, job.stdout


def run_job(folder, program, *arguments, ranks=2, **serial):
    """The job of `program` ends with the bits of serial_parameters(**serial). Returns what it printed."""
    ends, printed = ends_of(folder, program, *arguments, ranks=ranks)
    sizes = list(ends[0]["history"])
    assert len(sizes) == program.STEPS, "a step counted twice or was lost"
    assert sizes[0] == ranks and ranks - 1 in sizes[program.KILL_AT:] and sizes[-1] == ranks, sizes
    assert ranks in sizes[:program.KILL_AT]
    torch.set_num_threads(1)
    expected = serial_parameters(sizes, **serial)
    for end in ends:
        assert list(end["history"]) == sizes
        assert end["rate"] == ends[0]["rate"] == pytest.approx([0.01 * 0.1 ** (program.STEPS // 30)])
        for mine, other in zip(end["parameters"], expected, strict=True):
            assert torch.equal(mine, other)
    return printed


@pytest.mark.parametrize("kind", ["adam", "zero", "scaled", "catches"])
def test_a_loop_that_loses_a_rank_ends_with_the_bits_of_the_serial_program(tmp_path, kind):
    run_job(tmp_path, program_elastic, kind)


def test_a_rank_dies_in_a_join_over_uneven_batches_after_the_optimizer_has_stepped(tmp_path):
    run_job(tmp_path, program_elastic, "join", ranks=3, batches=program_elastic.batches)


def test_a_process_that_comes_follows_the_others_before_it_takes_part(tmp_path):
    printed = run_job(tmp_path, program_elastic, "follow", ranks=3)
    followed = int(re.search(r"followed (\d+)", printed)[1])
    assert followed > 3, "three steps come before it has the state"


def test_a_layer_that_normalizes_over_all_members_goes_on_with_those_that_there_are(tmp_path):
    ends, _ = ends_of(tmp_path, program_elastic, "norm", ranks=3)
    sizes = list(ends[0]["history"])
    assert 2 in sizes and sizes[-1] == 3, sizes
    model = program_elastic.network(normalized=True)
    optimizer, scheduler = program_elastic.optimizers(model)
    for step, size in enumerate(sizes):
        optimizer.zero_grad()
        batch = torch.cat([program_elastic.samples(step, rank, size) for rank in range(size)])
        program_elastic.loss_of(model(batch)).backward()
        optimizer.step()
        scheduler.step()
    for end in ends:
        for key, expected in ("parameters", model.parameters()), ("buffers", model.buffers()):
            for mine, first, other in zip(end[key], ends[0][key], expected, strict=True):
                assert torch.equal(mine, first)
                torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-4)


def test_a_manager_with_quorum_and_commit_calls_can_be_written_over_elastic(tmp_path):
    out = run_job(tmp_path, program_manager)
    assert (tmp_path / "voted").exists(), "no rank voted against a step"
    # The vote, the loss of a rank and the new process each began an epoch.
    assert all(int(line.rsplit(maxsplit=1)[1]) >= 4 for line in out.splitlines() if " in epoch " in line), out


def workers_far_apart(lost, begins):
    """The parameters at the end, when one process plays the workers of program_far_apart.py: worker `lost` dies, worker 2 begins
    with step `begins`."""
    outer = [parameter.detach().clone() for parameter in program_far_apart.network().parameters()]
    outer_optimizer = program_far_apart.OUTER(outer)
    models = {number: program_far_apart.network() for number in range(2)}
    optimizers = {number: program_far_apart.INNER(model.parameters()) for number, model in models.items()}
    for step in range(program_far_apart.STEPS):
        if step == program_far_apart.KILL_AT:
            del models[lost]
        if step == begins:
            [rate] = [group["lr"] for group in optimizers[1 - lost].param_groups]
            models[2] = program_far_apart.network()
            optimizers[2] = program_far_apart.INNER(models[2].parameters(), lr=rate)
            with torch.no_grad():
                for parameter, value in zip(models[2].parameters(), outer, strict=True):
                    parameter.copy_(value)
        for number, model in models.items():
            program_far_apart.train(model, optimizers[number], step, number)
            optimizers[number].step()
        if (step + 1) % program_far_apart.INNER_STEPS == 0:
            with torch.no_grad():
                for i, value in enumerate(outer):
                    parts = [(value - list(model.parameters())[i]) / len(models) for model in models.values()]
                    value.grad = sum(parts[1:], parts[0])
                outer_optimizer.step()
                for model in models.values():
                    for parameter, value in zip(model.parameters(), outer, strict=True):
                        parameter.copy_(value)
    return outer


def test_workers_far_apart_that_lose_one_end_with_the_bits_of_the_serial_program(tmp_path):
    ends, _ = ends_of(tmp_path, program_far_apart)
    survivor, newcomer = sorted(ends, key=lambda end: end["number"])
    assert newcomer["number"] == 2
    assert [step for step, _ in survivor["steps"]] == list(range(program_far_apart.STEPS)), "a step came twice or was lost"
    begins = newcomer["steps"][0][0]
    assert begins > program_far_apart.KILL_AT and newcomer["steps"] == survivor["steps"][begins:]
    torch.set_num_threads(1)
    expected = workers_far_apart(1 - survivor["number"], begins)
    for end in ends:
        assert end["rate"] == 0.03
        for mine, published, other in zip(end["parameters"], end["outer"], expected, strict=True):
            assert torch.equal(mine, other) and torch.equal(published, other)


def test_workers_far_apart_whose_exchanges_go_on_beside_training_end_alike(tmp_path):
    ends, _ = ends_of(tmp_path, program_far_apart, "streaming")
    for one, other in zip(*(end["outer"] for end in ends), strict=True):
        assert torch.equal(one, other)


def test_an_optimizer_of_workers_far_apart_is_refused_where_it_cannot_be_right():
    elastic = gradwire.elastic.Elastic(dist.HashStore())
    net = torch.nn.Linear(1, 1)

    def optimizer_over(group):
        diloco = DilocoAverager(net.parameters(), 2, process_group=group)
        return PostLocalSGDOptimizer(torch.optim.SGD(net.parameters(), 0.1), diloco)

    with pytest.raises(dist.InvalidArgument, match="was made over another group"):
        elastic.add(optimizer_over(gradwire.elastic.Elastic(dist.HashStore()).group))
    elastic.add(optimizer_over(elastic.group))
    with pytest.raises(dist.InvalidArgument, match="a second optimizer that trains separately"):
        elastic.add(optimizer_over(elastic.group))
    with pytest.raises(dist.InvalidArgument, match="excludes DistributedDataParallel"):
        elastic.add(DistributedDataParallel(torch.nn.Linear(1, 1), process_group=elastic.group))


def test_the_program_of_workers_far_apart_in_the_docs_runs(tmp_path):
    program = tmp_path / "far_apart.py"
    program.write_text(block_of("elastic.md", "DilocoAverager("))
    command = [str(BUILD / "bin" / "gradwire-run"), "--elastic", "1:2", "-n", "2", sys.executable, str(program)]
    job = subprocess.run(command, capture_output=True, text=True, timeout=GUARD, check=False)
    assert job.returncode == 0, job.stderr
    losses = [float(line.split()[-1]) for line in job.stdout.splitlines()]
    assert len(losses) == 2 and max(losses) < 0.1, job.stdout


def test_a_slow_rank_is_named_dropped_and_not_replaced(tmp_path):
    # With two ranks the job drops none: on a busy machine one of the others might be slow for some steps.
    command = [str(BUILD / "bin" / "gradwire-run"), "--elastic", "2:3", "-n", "3", "--no-prefix", sys.executable,
               program_slow.__file__, str(tmp_path)]
    job = subprocess.run(command, capture_output=True, text=True, timeout=GUARD, check=False)
    assert job.returncode == 0, job.stderr
    ends = sorted(job.stdout.splitlines())
    assert [end.split()[0] for end in ends] == ["dropped", "finished", "finished"], job.stdout
    assert len({end.split(maxsplit=1)[1] for end in ends}) == 1, "all name the same rank"
    assert "is slow: its own part of a step took" in job.stderr
    assert "takes its place" not in job.stderr


def test_ranks_that_were_asked_to_leave_have_time_to_save_whatever_the_bound_of_a_standstill(tmp_path):
    program = tmp_path / "saves.py"
    program.write_text(SMALL_JOB + """
import time

def step(at):
    model(torch.ones(1, 2)).sum().backward()
    if at.step == 5:
        print("begun", flush=True)
    time.sleep(0.01)

assert elastic.run(10**6, step) == "left"
time.sleep(4)
print("saved", flush=True)
""")
    command = [str(BUILD / "bin" / "gradwire-run"), "--elastic", "1:2", "-n", "2", "--stall", "1", sys.executable, str(program)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as job:
        line = ""
        while "begun" not in line:
            line = job.stdout.readline()
            assert line, "the job has ended"
        job.send_signal(signal.SIGTERM)
        out, err = job.communicate(timeout=GUARD)
    assert out.count("saved") == 2, err


def test_an_error_of_the_program_on_all_ranks_ends_the_job_and_is_told_first(tmp_path):
    program = tmp_path / "fails.py"
    program.write_text(SMALL_JOB + """
def step(at):
    if at.step == 3:
        raise ValueError("a bad sample")
    model(torch.ones(1, 2)).sum().backward()

elastic.run(10, step)
""")
    command = [str(BUILD / "bin" / "gradwire-run"), "--elastic", "1:2", "-n", "2", "--deaths-per-minute", "100", sys.executable, str(program)]
    job = subprocess.run(command, capture_output=True, text=True, timeout=GUARD, check=False)
    assert job.returncode == 1, job.stderr
    assert "no member holds the state of the job any more, because all that held it died or left together, so the job ends" in job.stderr
    report = job.stderr[job.stderr.index(" died first, of exit code 1, "):]
    first, last = report.split(" died last, of exit code 1, ")
    assert "  | ValueError: a bad sample" in first, job.stderr
    assert "no member holds the state" in last, job.stderr


def test_a_rank_that_fails_after_the_last_step_fails_the_job_and_the_others_end(tmp_path):
    (tmp_path / "program.py").write_text(SMALL_JOB + """
import os, pathlib, sys
end = elastic.run(3, lambda at: model(torch.ones(1, 2)).sum().backward())
if elastic.group.rank() == 0:
    raise OSError("no room for the model")
while pathlib.Path(sys.argv[1], "go").exists():
    pass
print("saved", end)
""")
    (tmp_path / "go").touch()
    job = subprocess.Popen([str(BUILD / "bin" / "gradwire-run"), "--elastic", "1:2", "-n", "2", sys.executable, str(tmp_path / "program.py"), str(tmp_path)],
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    said = ""
    while "no process takes its place" not in said and (line := job.stderr.readline()):
        said += line
    (tmp_path / "go").unlink()  # the other rank ends after the launcher has seen that one failed
    out, err = job.communicate(timeout=GUARD)
    assert job.returncode == 1, said + err
    assert "died of exit code 1 after the job's last step was counted; no process takes its place" in said
    assert "OSError: no room for the model" in err
    assert out.count("saved finished") == 1


def test_a_rule_for_slow_ranks_that_makes_no_sense_is_refused():
    with pytest.raises(dist.InvalidArgument, match="give a number above 1"):
        gradwire.elastic.SlowRule(factor=1)
    rule = gradwire.elastic.SlowRule()
    assert (rule.factor, rule.steps, rule.drop) == (3, 20, False)
    assert rule.least.total_seconds() == 0.01


def test_a_state_in_parts_is_the_state():
    large = torch.randn(200, 300)
    state = {
        "tensors": [large, large.t(), large.half()[3:180], torch.arange(5)],
        "looks taken": torch.full((1,), 2.5).expand(400, 400),
        "nested": collections.OrderedDict(pair=(large.double(), "text"), none=None, number=7),
    }
    text, tensors = split_value(state)
    assert [tensor.shape for tensor in tensors] == [(200, 300), (177, 300), (200, 300)]
    assert tensors[0].data_ptr() == large.data_ptr(), "a large tensor is not copied"
    assert len(text) < large.nbytes + 4 * 400 * 400 + 10_000
    again = join_value(text, [tensor.clone() for tensor in tensors])
    assert type(again["nested"]) is collections.OrderedDict
    assert torch.equal(again["looks taken"], state["looks taken"])
    assert torch.equal(again["nested"]["pair"][0], large.double())
    assert again["nested"]["pair"][1] == "text" and again["nested"]["none"] is None and again["nested"]["number"] == 7
    for one, other in zip(again["tensors"], state["tensors"], strict=True):
        assert one.dtype == other.dtype and torch.equal(one, other)


def test_a_state_comes_to_the_devices_of_its_new_rank():
    class Storage:
        def to(self, device):
            return f"on {device}"

    here = Storage()
    assert _on_own_device(here, "cpu") is here
    assert _on_own_device(here, "cuda:1") == "on cuda", "the current device of this rank, not that of the rank before"
    parameter, value = torch.zeros(2, device="meta"), torch.zeros(2)
    assert _beside(parameter, "exp_avg", value).is_meta, "a checkpoint's tensors are on the CPU"
    assert _beside(parameter, "step", value) is value
    assert _beside(parameter, "note", "text") == "text"


def test_what_cannot_be_added_is_refused():
    store = dist.HashStore()
    elastic = gradwire.elastic.Elastic(store)
    with pytest.raises(dist.InvalidArgument, match="add the DistributedDataParallel around it"):
        elastic.add(torch.nn.Linear(1, 1))
    with pytest.raises(dist.InvalidArgument, match="a int has no state_dict"):
        elastic.add(3)
    with pytest.raises(dist.InvalidArgument, match="no DistributedDataParallel was added"):
        elastic.run(3, lambda at: None)
    elsewhere = DistributedDataParallel(torch.nn.Linear(1, 1), process_group=gradwire.elastic.Elastic(store).group)
    with pytest.raises(dist.InvalidArgument, match="was made over another group"):
        elastic.add(elsewhere)


def test_without_a_launcher_the_error_says_what_to_do(monkeypatch):
    monkeypatch.delenv("GRADWIRE_ELASTIC", raising=False)
    with pytest.raises(dist.InvalidArgument, match="start the program with gradwire-run --elastic MIN:MAX"):
        gradwire.elastic.Elastic()


def test_a_member_that_waits_leaves():
    store = dist.HashStore()
    elastic = gradwire.elastic.Elastic(store)
    model = DistributedDataParallel(torch.nn.Linear(1, 1), process_group=elastic.group)
    elastic.add(model)
    elastic.leave()
    assert elastic.run(3, lambda at: pytest.fail("no step")) == "left"
    assert elastic.counted == 0


def test_zero_is_refused_where_its_parts_cannot_be_dealt_anew():
    elastic = gradwire.elastic.Elastic(dist.HashStore())
    parameters = list(torch.nn.Linear(2, 2).parameters())
    overlapped = ZeroRedundancyOptimizer(parameters, torch.optim.SGD, elastic.group, overlap_with_ddp=True, lr=0.1)
    with pytest.raises(dist.UnsupportedError, match="leave it False in an elastic job"):
        elastic.add(overlapped)
    elsewhere = gradwire.elastic.Elastic(dist.HashStore()).group
    with pytest.raises(dist.InvalidArgument, match="was made over another group"):
        elastic.add(ZeroRedundancyOptimizer(parameters, torch.optim.SGD, elsewhere, lr=0.1))
