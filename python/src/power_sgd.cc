// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// PowerSGD's state and hooks in Python.
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "binding.h"
#include "gradwire/hooks/power_sgd.h"

namespace gradwire::python {

void bind_power_sgd(py::module_& module) {
  py::class_<PowerSGDOptions>(module, "PowerSGDOptions")
      .def(py::init<>())
      .def_readwrite("matrix_approximation_rank", &PowerSGDOptions::matrix_approximation_rank)
      .def_readwrite("start_iteration", &PowerSGDOptions::start_iteration)
      .def_readwrite("min_compression_rate", &PowerSGDOptions::min_compression_rate)
      .def_readwrite("use_error_feedback", &PowerSGDOptions::use_error_feedback)
      .def_readwrite("warm_start", &PowerSGDOptions::warm_start)
      .def_readwrite("orthogonalization_epsilon", &PowerSGDOptions::orthogonalization_epsilon)
      .def_readwrite("random_seed", &PowerSGDOptions::random_seed)
      .def_readwrite("compression_stats_logging_frequency", &PowerSGDOptions::compression_stats_logging_frequency)
      .def_readwrite("batch_tensors_with_same_shape", &PowerSGDOptions::batch_tensors_with_same_shape);
  py::class_<PowerSGDState, std::shared_ptr<PowerSGDState>>(module, "PowerSGDState", EndsUnlocked())
      .def(py::init<PowerSGDOptions, std::shared_ptr<ProcessGroup>>(), py::arg("options"), py::arg("group"))
      .def_property_readonly("options", &PowerSGDState::options)
      .def("iterations", &PowerSGDState::iterations, Unlocked())
      .def("compression_stats",
           [](const PowerSGDState& self) {
             const CompressionStats stats = self.compression_stats();
             return py::make_tuple(stats.rate, stats.before, stats.after);
           })
      .def(
          "error",
          [](const PowerSGDState& self, const std::string& parameter) -> std::optional<at::Tensor> {
            at::Tensor error = self.error(parameter);
            if (!error.defined()) return std::nullopt;
            return error;
          },
          py::arg("parameter"))
      .def("state_dict", [](const PowerSGDState& self) { return dict_of(self.state_dict()); })
      .def("load_state_dict",
           [](PowerSGDState& self, const py::dict& state) { self.load_state_dict(hook_state_from(state)); });
  module.def("make_power_sgd_hook",
             [](std::shared_ptr<PowerSGDState> state) { return make_power_sgd_hook(std::move(state)); });
  module.def("make_batched_power_sgd_hook",
             [](std::shared_ptr<PowerSGDState> state) { return make_batched_power_sgd_hook(std::move(state)); });
}

}  // namespace gradwire::python
