// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The extension module gradwire._C: the C++ runtime as Python objects. What users call is in the Python files around
// it.
#include "binding.h"

PYBIND11_MODULE(_C, module) {
  module.doc() = "The C++ runtime of gradwire. Import gradwire instead.";
  using namespace gradwire::python;
  bind_errors(module);
  bind_reduce_op(module);
  bind_options(module);
  bind_stores(module);
  bind_work(module);
  bind_process_group(module);
  bind_init(module);
  bind_functional(module);
  bind_nn(module);
  bind_comm_hook(module);
  bind_hooks(module);
  bind_optim(module);
  bind_averagers(module);
  bind_join(module);
  bind_ddp(module);
  bind_elastic(module);
  bind_c10d(module);
  bind_end(module);
  bind_observe(module);
}
