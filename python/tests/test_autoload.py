# SPDX-FileCopyrightText: The gradwire authors
# SPDX-License-Identifier: Apache-2.0
"""The backend "gradwire" is there after `import torch`, costs that import nothing, and breaks nothing where gradwire cannot be loaded."""
import importlib.metadata
import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys

import gradwire_autoload
import torch
from conftest import ROOT

GUARD = 300
PACKAGE = pathlib.Path(gradwire_autoload.__file__).parent


def python(source, path=PACKAGE, **environment):
    environment = {**os.environ, "PYTHONPATH": str(path), **environment}
    # The current folder comes before PYTHONPATH; under ctest it is the one of the built package.
    result = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False, env=environment,
                            cwd=path, timeout=GUARD)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout.strip()


def test_the_build_and_the_wheel_have_the_same_entry_points():
    # Not with tomllib, which Python 3.10 lacks.
    lines = (ROOT / "pyproject.toml").read_text().splitlines()
    heading = lines.index('[project.entry-points."torch.backends"]')
    assert lines[heading + 1] == 'gradwire = "gradwire_autoload:register"' and lines[heading + 2] == ""
    (point,) = importlib.metadata.entry_points(group="torch.backends", name="gradwire")
    assert point.value == "gradwire_autoload:register" and point.load() is gradwire_autoload.register


def test_the_wheel_requires_the_torch_that_it_is_built_against():
    spec = importlib.util.spec_from_file_location("torch_requirement", ROOT / "python" / "torch_requirement.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    version = torch.__version__.partition("+")[0]
    assert module.dynamic_metadata({}, {}) == {"dependencies": [f"torch=={version}"]}


KNOWN = """
import sys, torch
print(torch.distributed.is_backend_available("gradwire"), sorted(name for name in sys.modules if name.startswith("gradwire")))
"""


def test_importing_torch_makes_the_backend_known_and_loads_nothing_of_the_runtime():
    assert python(KNOWN) == "True ['gradwire_autoload']"


def test_importing_gradwire_makes_the_backend_known_where_torch_does_not_look_for_entry_points():
    assert python(KNOWN, TORCH_DEVICE_BACKEND_AUTOLOAD="0") == "False []"
    assert python("import gradwire" + KNOWN, TORCH_DEVICE_BACKEND_AUTOLOAD="0").startswith("True ")


TRAINS = """
import os, torch, torch.distributed as dist
dist.init_process_group("gradwire", init_method="file://" + os.environ["MEET"], rank=int(os.environ["RANK"]), world_size=2)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1, bias=False))
model(torch.full((1, 4), dist.get_rank() + 1.0)).sum().backward()
print(dist.get_backend(), model.module.weight.grad.tolist(), flush=True)
dist.destroy_process_group()
"""


def test_a_program_that_does_not_know_gradwire_trains_over_it(run_script):
    for process in run_script(TRAINS, 2, anew=True):
        output, _ = process.communicate(timeout=GUARD)
        assert process.returncode == 0 and output == "gradwire [[1.5, 1.5, 1.5, 1.5]]\n", output


NOT_LOADED = """
import torch, torch.distributed as dist
print(torch.ones(2).sum().item())
try:
    dist.init_process_group("gradwire", store=dist.HashStore(), rank=0, world_size=1)
except ImportError as error:
    print(error)
"""


FOR_BOTH = """
import torch, torch.distributed as td
td.init_process_group("cpu:gradwire,cuda:gradwire", store=td.HashStore(), rank=0, world_size=1)
engine = {kind: td.group.WORLD._get_backend(torch.device(kind)) for kind in ("cpu", "cuda")}
tensor = torch.ones(2)
td.all_reduce(tensor)
print(engine["cpu"] is engine["cuda"], engine["cuda"].name(), tensor.tolist())
td.destroy_process_group()
"""


def test_one_group_may_serve_tensors_on_the_cpu_and_on_cuda():
    assert python(FOR_BOTH).splitlines()[-1] == "True gradwire [1.0, 1.0]"


def test_where_gradwire_cannot_be_loaded_torch_can_and_the_first_group_says_why(tmp_path):
    shutil.copy(PACKAGE / "gradwire_autoload.py", tmp_path)
    (metadata,) = PACKAGE.glob("gradwire-*.dist-info")
    shutil.copytree(metadata, tmp_path / metadata.name)
    (tmp_path / "gradwire").mkdir()
    (tmp_path / "gradwire" / "__init__.py").write_text('raise ImportError("gradwire was built for another torch")\n')
    assert python(NOT_LOADED, tmp_path) == "2.0\ngradwire was built for another torch"
