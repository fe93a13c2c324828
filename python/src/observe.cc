// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include <string_view>

#include "binding.h"
#include "gradwire/base/strings.h"
#include "gradwire/base/trace.h"
#include "gradwire/observe/step_recorder.h"

namespace gradwire::python {
namespace {

// The trace points of a pass through DDP, for a DDP that is not gradwire's.
void pass_ddp_point(std::string_view name) {
  constexpr std::string_view kRoom = "ddp.";
  for (const char* const point : {"ddp.forward", "ddp.backward", "ddp.wait", "ddp.finished"}) {
    if (std::string_view(point).substr(kRoom.size()) == name) return trace::point(point);
  }
  throw InvalidArgument(concat("pass_ddp_point(): a pass has no point '", name, "'"));
}

}  // namespace

void bind_observe(py::module_& module) {
  module.def("begin_step", &observe::begin_step);
  module.def("end_step", &observe::end_step);
  module.def("tell_loss", &observe::tell_loss, py::arg("loss"));
  module.def("pass_ddp_point", &pass_ddp_point, py::arg("name"));
}

}  // namespace gradwire::python
