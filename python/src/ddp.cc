// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The part of DistributedDataParallel that does not depend on the module, for the Python class around it.
#include <torch/nn/module.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "binding.h"
#include "gradwire/ddp/distributed_data_parallel.h"
#include "gradwire/ddp/join.h"

namespace gradwire::python {
namespace {

using Named = std::vector<std::pair<std::string, at::Tensor>>;

// A module that holds the tensors of the Python one under the same names.
class TensorModule final : public torch::nn::Module {
 public:
  using torch::nn::Module::Module;

  // The module and the last part of a name like "encoder.0.weight"; makes the modules on the way.
  std::pair<TensorModule*, std::string> place_of(const std::string& name) {
    const std::size_t dot = name.find('.');
    if (dot == std::string::npos) return {this, name};
    std::shared_ptr<TensorModule>& child = children_by_name_[name.substr(0, dot)];
    if (child == nullptr) child = register_module(name.substr(0, dot), std::make_shared<TensorModule>("TensorModule"));
    return child->place_of(name.substr(dot + 1));
  }

 private:
  std::map<std::string, std::shared_ptr<TensorModule>> children_by_name_;
};

std::shared_ptr<torch::nn::Module> module_of(const Named& parameters, const Named& buffers) {
  auto module = std::make_shared<TensorModule>("TensorModule");
  for (const auto& [name, tensor] : parameters) {
    const auto [holder, last] = module->place_of(name);
    holder->register_parameter(last, tensor, tensor.requires_grad());
  }
  for (const auto& [name, tensor] : buffers) {
    const auto [holder, last] = module->place_of(name);
    holder->register_buffer(last, tensor);
  }
  return module;
}

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
                              bool gradient_as_bucket_view, bool static_graph, int lanes,
                              const std::optional<MixedPrecision>& mixed_precision, std::vector<std::string> delayed,
                              std::string delayed_until) {
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
  options.mixed_precision = mixed_precision;
  options.delay_all_reduce_named_params = std::move(delayed);
  options.param_to_hook_all_reduce = std::move(delayed_until);
  options.rethrow = &rethrow_as_python;
  return {new DdpCore(module_of(parameters, buffers), std::move(options)), &destroy};
}

// A Join that Python enters and leaves.
class JoinContext {
 public:
  JoinContext(std::shared_ptr<DdpCore> core, JoinOptions options)
      : core_(std::move(core)),
        join_(std::make_unique<Join>(std::vector<std::reference_wrapper<Joinable>>{*core_}, options)) {}

  ~JoinContext() {
    if (join_ != nullptr) fail("the Join was dropped before it was left");
  }
  JoinContext(const JoinContext&) = delete;
  JoinContext& operator=(const JoinContext&) = delete;

  void finish() {
    join_->finish();
    join_.reset();
  }
  // Leaves as a C++ scope is left with an exception.
  void fail(const std::string& what) {
    try {
      const std::unique_ptr<Join> leaving = std::move(join_);
      throw InternalError(what);
    } catch (const InternalError&) {
      // Python has the real one.
    }
  }

 private:
  std::shared_ptr<DdpCore> core_;
  std::unique_ptr<Join> join_;
};

std::shared_ptr<JoinContext> make_join(std::shared_ptr<DdpCore> core, bool divide_by_initial_world_size, bool enable,
                                       bool throw_on_early_termination) {
  JoinOptions options;
  options.enable = enable;
  options.throw_on_early_termination = throw_on_early_termination;
  options.divide_by_initial_world_size = divide_by_initial_world_size;
  return std::make_shared<JoinContext>(std::move(core), options);
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
      .def_readonly("param_dtype", &MixedPrecision::param_dtype)
      .def_readonly("reduce_dtype", &MixedPrecision::reduce_dtype)
      .def_readonly("buffer_dtype", &MixedPrecision::buffer_dtype);
  py::class_<JoinContext, std::shared_ptr<JoinContext>>(module, "JoinContext")
      .def(py::init(&make_join), py::arg("core"), py::arg("divide_by_initial_world_size"), py::arg("enable"),
           py::arg("throw_on_early_termination"), Unlocked())
      .def("finish", &JoinContext::finish, Unlocked())
      .def("fail", &JoinContext::fail, py::arg("what"), Unlocked());
  py::class_<DdpCore, std::shared_ptr<DdpCore>>(module, "DdpCore",
                                                "What DistributedDataParallel does around a module's forward().")
      .def(py::init(&make), py::arg("parameters"), py::arg("buffers"), py::arg("process_group"), py::arg("device_ids"),
           py::arg("broadcast_buffers"), py::arg("init_sync"), py::arg("bucket_cap_mb"),
           py::arg("find_unused_parameters"), py::arg("gradient_as_bucket_view"), py::arg("static_graph"),
           py::arg("lanes"), py::arg("mixed_precision"), py::arg("delay_all_reduce_named_params"),
           py::arg("param_to_hook_all_reduce"), Unlocked())
      .def(
          "before_forward",
          [](DdpCore& self, bool training) {
            if (self.module().is_training() != training) self.module().train(training);
            self.before_forward();
          },
          py::arg("training"), Unlocked())
      .def("after_forward", &DdpCore::after_forward, py::arg("outputs"), Unlocked())
      .def("moves_inputs", &DdpCore::moves_inputs)
      .def("to_device", &DdpCore::to_device, py::arg("tensor"))
      .def(
          "logging_data", [](const DdpCore& self) { return self.logging_data().as_map(); }, Unlocked())
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
