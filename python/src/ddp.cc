// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The part of DistributedDataParallel that does not depend on the module, for the Python class around it.
#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "binding.h"
#include "caller_frame.h"
#include "gradwire/ddp/distributed_data_parallel.h"

namespace gradwire::python {
namespace {

using Named = std::vector<std::pair<std::string, at::Tensor>>;

// A tree of modules that holds the tensors of the Python one under the same names.
class ModuleTree {
 public:
  // `sparse`: names of embeddings' weights whose gradients are sparse. DDP knows those by the type of their module.
  ModuleTree(const Named& parameters, const std::set<std::string>& sparse) {
    for (const auto& [name, tensor] : parameters) {
      if (!sparse.contains(name)) continue;
      const bool requires_grad = tensor.requires_grad();
      const auto options = torch::nn::EmbeddingOptions(tensor.size(0), tensor.size(1))._weight(tensor).sparse(true);
      modules_[path_of(name)] = std::make_shared<torch::nn::EmbeddingImpl>(options);
      tensor.set_requires_grad(requires_grad);
    }
  }

  // The module at the path; makes it, and those on the way.
  torch::nn::Module& at(const std::string& path) {
    std::shared_ptr<torch::nn::Module>& module = modules_[path];
    if (module == nullptr) module = std::make_shared<torch::nn::Module>("Module");
    torch::nn::Module& found = *module;
    if (!path.empty() && linked_.insert(path).second) at(path_of(path)).register_module(last_of(path), module);
    return found;
  }
  std::shared_ptr<torch::nn::Module> root() {
    at("");
    return modules_.at("");
  }

  // "encoder.0.weight": "encoder.0" and "weight".
  static std::string path_of(const std::string& name) {
    const std::size_t dot = name.rfind('.');
    return dot == std::string::npos ? "" : name.substr(0, dot);
  }
  static std::string last_of(const std::string& name) { return name.substr(name.rfind('.') + 1); }

 private:
  std::map<std::string, std::shared_ptr<torch::nn::Module>> modules_;
  std::set<std::string> linked_;  // to their parents
};

std::shared_ptr<torch::nn::Module> module_of(const Named& parameters, const Named& buffers,
                                             const std::set<std::string>& sparse) {
  ModuleTree tree(parameters, sparse);
  for (const auto& [name, tensor] : parameters) {
    if (sparse.contains(name)) {
      tree.at(ModuleTree::path_of(name));  // has its weight
    } else {
      tree.at(ModuleTree::path_of(name)).register_parameter(ModuleTree::last_of(name), tensor, tensor.requires_grad());
    }
  }
  for (const auto& [name, tensor] : buffers)
    tree.at(ModuleTree::path_of(name)).register_buffer(ModuleTree::last_of(name), tensor);
  return tree.root();
}

std::shared_ptr<DdpCore> make(Named parameters, Named buffers, const std::set<std::string>& sparse,
                              std::shared_ptr<ProcessGroup> group, std::vector<int> device_ids, bool broadcast_buffers,
                              std::optional<bool> forward_sync_buffers, bool init_sync,
                              std::optional<double> bucket_cap_mb, std::vector<double> bucket_caps_mb,
                              bool find_unused_parameters, bool gradient_as_bucket_view, bool static_graph, int lanes,
                              const std::optional<MixedPrecision>& mixed_precision, std::vector<std::string> delayed,
                              std::string delayed_until) {
  const CallerFrame caller;
  const WithoutLock unlocked;
  const PythonInBackward errors;
  DdpOptions options;
  options.process_group = std::move(group);
  options.device_ids = std::move(device_ids);
  options.broadcast_buffers = broadcast_buffers;
  options.forward_sync_buffers = forward_sync_buffers;
  options.init_sync = init_sync;
  options.bucket_cap_mb = bucket_cap_mb;
  options.bucket_caps_mb = std::move(bucket_caps_mb);
  options.find_unused_parameters = find_unused_parameters;
  options.gradient_as_bucket_view = gradient_as_bucket_view;
  options.static_graph = static_graph;
  options.lanes = lanes;
  options.mixed_precision = mixed_precision;
  options.delay_all_reduce_named_params = std::move(delayed);
  options.param_to_hook_all_reduce = std::move(delayed_until);
  return ending_unlocked(std::make_shared<DdpCore>(module_of(parameters, buffers, sparse), std::move(options)));
}

}  // namespace

void bind_ddp(py::module_& module) {
  py::class_<MixedPrecision>(module, "MixedPrecision", "Types of lower precision; None: as they are.")
      .def(py::init([](std::optional<at::ScalarType> param, std::optional<at::ScalarType> reduce,
                       std::optional<at::ScalarType> buffer) {
             return MixedPrecision{param, reduce, buffer};
           }),
           py::arg("param_dtype") = py::none(), py::arg("reduce_dtype") = py::none(),
           py::arg("buffer_dtype") = py::none())
      .def_readonly("param_dtype", &MixedPrecision::param_dtype, "Of parameters and inputs in forward and backward.")
      .def_readonly("reduce_dtype", &MixedPrecision::reduce_dtype, "Of the buckets that are reduced.")
      .def_readonly("buffer_dtype", &MixedPrecision::buffer_dtype, "Of buffers.");
  py::class_<DdpCore, Joinable, std::shared_ptr<DdpCore>>(
      module, "DdpCore", EndsUnlocked(), "What DistributedDataParallel does around a module's forward().")
      .def(py::init(&make), py::arg("parameters"), py::arg("buffers"), py::arg("sparse"), py::arg("process_group"),
           py::arg("device_ids"), py::arg("broadcast_buffers"), py::arg("forward_sync_buffers"), py::arg("init_sync"),
           py::arg("bucket_cap_mb"), py::arg("bucket_caps_mb"), py::arg("find_unused_parameters"),
           py::arg("gradient_as_bucket_view"), py::arg("static_graph"), py::arg("lanes"), py::arg("mixed_precision"),
           py::arg("delay_all_reduce_named_params"), py::arg("param_to_hook_all_reduce"))
      .def(
          "before_forward",
          [](DdpCore& self, bool training) {
            if (self.module().is_training() != training) self.module().train(training);
            self.before_forward();
          },
          py::arg("training"), Calls())
      .def("after_forward", &DdpCore::after_forward, py::arg("outputs"), Unlocked())
      .def("abandon_forward", &DdpCore::abandon_forward, Unlocked())
      .def("set_buffers", &DdpCore::set_buffers, py::arg("buffers"), Unlocked())
      .def("moves_inputs", &DdpCore::moves_inputs)
      .def("to_device", &DdpCore::to_device, py::arg("tensor"))
      .def(
          "logging_data", [](const DdpCore& self) { return self.logging_data().as_map(); }, Unlocked())
      .def("set_sync", &DdpCore::set_sync, py::arg("sync"))
      .def("set_forward_sync_buffers", &DdpCore::set_forward_sync_buffers, py::arg("sync"))
      .def("buffers_are_due", &DdpCore::buffers_are_due)
      .def("set_buffers_due", &DdpCore::set_buffers_due, py::arg("due"))
      .def("register_comm_hook", &DdpCore::register_comm_hook, py::arg("hook"), Calls())
      .def("replace_comm_hook", &DdpCore::replace_comm_hook, py::arg("hook").none(true), Calls())
      .def("bucket_order", &DdpCore::bucket_order, Unlocked())
      .def("next_bucket_order", &DdpCore::next_bucket_order, Unlocked())
      .def("set_bucket_order", &DdpCore::set_bucket_order, py::arg("names"), Unlocked())
      .def("bucket_plan", &DdpCore::bucket_plan, Unlocked())
      .def("iterations", &DdpCore::iterations, Unlocked())
      .def("payload_bytes", &DdpCore::payload_bytes, Unlocked())
      .def_property_readonly("process_group", &DdpCore::process_group);
}

}  // namespace gradwire::python
