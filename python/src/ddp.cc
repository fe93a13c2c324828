// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The part of DistributedDataParallel that does not depend on the module, for the Python class around it.
#include <optional>
#include <string>
#include <vector>

#include "binding.h"
#include "gradwire/ddp/distributed_data_parallel.h"

namespace gradwire::python {
namespace {

using Named = std::vector<std::pair<std::string, at::Tensor>>;

// Lanes may be running Python when it goes: they are joined without the lock.
void destroy(DdpCore* core) {
  if (PyGILState_Check() != 0) {
    const py::gil_scoped_release unlocked;
    delete core;
  } else {
    delete core;
  }
}

std::shared_ptr<DdpCore> make(Named parameters, Named buffers, std::shared_ptr<ProcessGroup> group,
                              std::vector<int> device_ids, bool broadcast_buffers, bool init_sync,
                              std::optional<double> bucket_cap_mb, bool find_unused_parameters,
                              bool gradient_as_bucket_view, bool static_graph, int lanes) {
  DdpOptions options;
  options.process_group = std::move(group);
  options.device_ids = std::move(device_ids);
  options.broadcast_buffers = broadcast_buffers;
  options.init_sync = init_sync;
  options.bucket_cap_mb = bucket_cap_mb;
  options.find_unused_parameters = find_unused_parameters;
  options.gradient_as_bucket_view = gradient_as_bucket_view;
  options.static_graph = static_graph;
  options.lanes = lanes;
  ModuleTensors module{std::move(parameters), std::move(buffers)};
  return {new DdpCore(std::move(module), std::move(options), &rethrow_as_python), &destroy};
}

}  // namespace

void bind_ddp(py::module_& module) {
  py::class_<DdpCore, std::shared_ptr<DdpCore>>(module, "DdpCore",
                                                "What DistributedDataParallel does around a module's forward().")
      .def(py::init(&make), py::arg("parameters"), py::arg("buffers"), py::arg("process_group"), py::arg("device_ids"),
           py::arg("broadcast_buffers"), py::arg("init_sync"), py::arg("bucket_cap_mb"),
           py::arg("find_unused_parameters"), py::arg("gradient_as_bucket_view"), py::arg("static_graph"),
           py::arg("lanes"), Unlocked())
      .def(
          "before_forward", [](DdpCore& self, bool training) { self.before_forward(training); }, py::arg("training"),
          Unlocked())
      .def("after_forward", &DdpCore::after_forward, py::arg("outputs"), Unlocked())
      .def("set_sync", &DdpCore::set_sync, py::arg("sync"))
      .def("register_comm_hook", &DdpCore::register_comm_hook, py::arg("hook"), Unlocked())
      .def("replace_comm_hook", &DdpCore::replace_comm_hook, py::arg("hook").none(true), Unlocked())
      .def("bucket_order", &DdpCore::bucket_order, Unlocked())
      .def("set_bucket_order", &DdpCore::set_bucket_order, py::arg("names"), Unlocked())
      .def("bucket_plan", &DdpCore::bucket_plan, Unlocked())
      .def("iterations", &DdpCore::iterations, Unlocked())
      .def("payload_bytes", &DdpCore::payload_bytes, Unlocked())
      .def_property_readonly("process_group", &DdpCore::process_group);
}

}  // namespace gradwire::python
