// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Layers that communicate. The modules themselves are Python's.
#include <optional>

#include "binding.h"
#include "caller_frame.h"
#include "gradwire/nn/layer_group.h"
#include "gradwire/nn/sync_batch_norm_function_internal.h"

namespace gradwire::python {
namespace {

using OptionalTensor = std::optional<at::Tensor>;

std::shared_ptr<LayerGroup> make_layer_group(std::shared_ptr<ProcessGroup> group) {
  const WithoutLock unlocked;
  return std::make_shared<LayerGroup>(std::move(group));
}

at::Tensor sync_batch_norm(const at::Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias,
                           const OptionalTensor& running_mean, const OptionalTensor& running_var,
                           const OptionalTensor& num_batches_tracked, std::optional<double> momentum, double eps,
                           LayerGroup& layer) {
  const std::shared_ptr<ProcessGroup> group = ending_unlocked(layer.duplicate());
  if (group == nullptr) throw InvalidArgument("sync_batch_norm(): the group has one rank");
  const auto defined = [](const OptionalTensor& tensor) { return tensor.value_or(at::Tensor()); };
  return internal::sync_batch_norm(
      input,
      {defined(weight), defined(bias), defined(running_mean), defined(running_var), defined(num_batches_tracked)},
      momentum, eps, group);
}

}  // namespace

void bind_nn(py::module_& module) {
  py::class_<LayerGroup, std::shared_ptr<LayerGroup>>(
      module, "LayerGroup", "The group of a layer that communicates. Layers over one group share one duplicate of it.",
      EndsUnlocked())
      .def(py::init(&make_layer_group), py::arg("group"))
      .def_property_readonly("group", &LayerGroup::group)
      .def(
          "has_others", [](LayerGroup& layer) { return layer.duplicate() != nullptr; }, Calls(),
          "Whether the group has other ranks. The first call of all layers over the group is collective.");
  module.def("sync_batch_norm", &sync_batch_norm, py::arg("input"), py::arg("weight"), py::arg("bias"),
             py::arg("running_mean"), py::arg("running_var"), py::arg("num_batches_tracked"), py::arg("momentum"),
             py::arg("eps"), py::arg("group"), CallsForAutograd(),
             "Normalizes by the statistics of all ranks; moves the running statistics where they are given, and counts "
             "the batch. momentum None: they become the mean of all batches.");
}

}  // namespace gradwire::python
