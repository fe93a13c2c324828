# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""Names and arguments are PyTorch's, or are known to be absent; everything says what it is."""
import importlib
import inspect
import pydoc

import pytest
import torch
import torch.distributed.nn  # noqa: F401  (torch.distributed does not import it)

import gradwire
from gradwire import distributed as dist
from gradwire.distributed.algorithms.ddp_comm_hooks._native import NativeHook
from conftest import ROOT

HOOKS = "algorithms.ddp_comm_hooks"
MODULES = [
    "distributed_c10d", "rendezvous", "nn.functional", "algorithms.join", HOOKS, f"{HOOKS}.ddp_zero_hook", f"{HOOKS}.debugging_hooks",
    f"{HOOKS}.default_hooks", f"{HOOKS}.mixed_precision_hooks", f"{HOOKS}.optimizer_overlap_hooks",
    f"{HOOKS}.post_localSGD_hook", f"{HOOKS}.powerSGD_hook", f"{HOOKS}.quantization_hooks",
    "algorithms.model_averaging.averagers", "algorithms.model_averaging.hierarchical_model_averager",
    "algorithms.model_averaging.utils", "optim.post_localSGD_optimizer", "optim.zero_redundancy_optimizer",
]

# PyTorch's names that have no meaning here, by what one uses instead.
ABSENT = {
    "BackendConfig": "a group has one backend",
    "BuiltinCommHookType": "DDPCommHookType",
    "DeviceMesh": "PyTorch's, over the backend 'gradwire'",
    "GroupName": "a str",
    "Logger": "_get_ddp_logging_data()",
    "ProcessGroupGloo": "the backend 'gloo'",
    "ProcessGroupNCCL": "the backend 'nccl'",
    "Reducer": "DistributedDataParallel",
    "breakpoint": "pdb on one rank, between two barriers",
    "get_backend_config": "a group has one backend",
    "init_device_mesh": "PyTorch's, over the backend 'gradwire'",
    "record_comm": "PyTorch's flight recorder",
    "reduce_op": "ReduceOp; deprecated by PyTorch",
    "shrink_group": "new_group() of the ranks that are left",
}


def names_of(module):
    names = getattr(module, "__all__", None)
    if names is None:
        names = [name for name, value in vars(module).items()
                 if not name.startswith("_") and getattr(value, "__module__", "") == module.__name__]
    return set(names)


@pytest.mark.parametrize("name", MODULES)
def test_names_are_pytorchs_or_known_to_be_absent(name):
    theirs = importlib.import_module(f"torch.distributed.{name}")
    ours = importlib.import_module(f"gradwire.distributed.{name}")
    missing = {each for each in names_of(theirs) if not hasattr(ours, each)}
    assert missing <= ABSENT.keys(), missing - ABSENT.keys()


# Of the names in torch.distributed itself, those that are no part of it.
NO_NAMES = {"RankType", "log", "timedelta"}


def test_names_of_the_package_itself_are_pytorchs_or_known_to_be_absent():
    theirs = {name for name in dir(torch.distributed)
              if not name.startswith("_") and not inspect.ismodule(getattr(torch.distributed, name))} - NO_NAMES
    missing = {name for name in theirs if not hasattr(dist, name)}
    assert missing <= ABSENT.keys(), missing - ABSENT.keys()


def test_what_is_said_to_be_absent_is_and_the_page_says_so():
    assert not [name for name in ABSENT if hasattr(dist, name)]
    page = (ROOT / "docs" / "python.md").read_text()
    absent = page[page.index("- **Absent names**"):].split("\n- ")[0] + page[page.index("- **Stores**"):].split("\n- ")[0]
    stores = ["master_listen_fd"]
    assert not [name for name in [*ABSENT, *stores] if f"`{name}" not in absent]


def parameters_of(callable):
    try:
        return [parameter.name for parameter in inspect.signature(callable).parameters.values()
                if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
                and parameter.name != "_ranks"]
    except (TypeError, ValueError):
        return None


@pytest.mark.parametrize("name", MODULES + ["DistributedDataParallel"])
def test_arguments_have_pytorchs_names_in_pytorchs_order(name):
    if name == "DistributedDataParallel":
        pairs = {name: (torch.nn.parallel.DistributedDataParallel, gradwire.nn.parallel.DistributedDataParallel)}
        method = "register_comm_hook no_sync join forward"
        pairs.update({part: tuple(getattr(kind, part) for kind in pairs[name]) for part in method.split()})
    else:
        theirs = importlib.import_module(f"torch.distributed.{name}")
        ours = importlib.import_module(f"gradwire.distributed.{name}")
        pairs = {each: (getattr(theirs, each), getattr(ours, each))
                 for each in names_of(theirs) & names_of(ours) if callable(getattr(ours, each))}
    for each, (their, our) in pairs.items():
        wanted, got = parameters_of(their), parameters_of(our)
        if wanted is None or got is None or inspect.isclass(their) and their.__module__.startswith("torch._C"):
            continue
        if isinstance(our, NativeHook):  # the first argument has several names in PyTorch
            assert len(got) == 2 and got[1] == wanted[1] == "bucket", (each, wanted, got)
        else:
            assert got[: len(wanted)] == wanted, (each, wanted, got)


def public(module, seen):
    """The public functions, classes and methods of the package from `module` on, by their names."""
    for name in names_of(module):
        value = getattr(module, name)
        where = f"{module.__name__}.{name}"
        if inspect.ismodule(value) and value.__name__.startswith("gradwire"):
            if value not in seen:
                seen.add(value)
                yield where, value
                yield from public(value, seen)
        elif callable(value) and str(getattr(value, "__module__", "")).startswith("gradwire"):
            yield where, value
            if inspect.isclass(value):
                for part, method in vars(value).items():
                    if not part.startswith("_") and (inspect.isfunction(method) or isinstance(method, property)):
                        yield f"{where}.{part}", method


def test_everything_public_says_what_it_is():
    found = dict(public(gradwire, set()))
    assert len(found) > 150
    silent = [where for where, value in found.items() if not inspect.getdoc(value)]
    assert not silent, silent
    # Whoever reads one docstring has not read the one before it.
    relative = [where for where, value in found.items() if inspect.getdoc(value).startswith(("The same", "As said"))]
    assert not relative, relative
    for where in ("gradwire.distributed.all_reduce", "gradwire.nn.parallel.DistributedDataParallel",
                  "gradwire.distributed.GradBucket", "gradwire.distributed.init_process_group"):
        text = pydoc.plain(pydoc.render_doc(where))
        assert len(text) > 200 and "0x" not in text, text


def test_the_table_of_hooks_has_every_hook():
    text = (ROOT / "docs" / "hooks.md").read_text(encoding="utf-8")
    table = [line for line in text.splitlines() if line.startswith("| `")]
    missing = [name for name in gradwire.hooks.names() if not any(f"`{name}`" in line for line in table)]
    assert not missing, missing
