// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "binding.h"
#include "gradwire/observe/step_recorder.h"

namespace gradwire::python {

void bind_observe(py::module_& module) {
  module.def("begin_step", &observe::begin_step);
  module.def("end_step", &observe::end_step);
  module.def("tell_loss", &observe::tell_loss, py::arg("loss"));
}

}  // namespace gradwire::python
