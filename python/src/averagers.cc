// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The averagers of workers far apart, for the Python classes around them.
#include <ATen/Functions.h>
#include <torch/optim/sgd.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "binding.h"
#include "caller_frame.h"
#include "gradwire/ddp/archive_bytes_internal.h"
#include "gradwire/ddp/separate_workers.h"
#include "gradwire/optim/diloco.h"
#include "gradwire/optim/gossip.h"

namespace gradwire::python {
namespace {

using Parameters = std::vector<at::Tensor>;
using ParamGroups = std::vector<torch::optim::OptimizerParamGroup>;

// The options of an optimizer that Python holds.
class OptionsInPython final : public torch::optim::OptimizerCloneableOptions<OptionsInPython> {};

at::Tensor tensor_of(const std::string& bytes) {
  at::Tensor tensor = at::empty({static_cast<std::int64_t>(bytes.size())}, at::TensorOptions(at::kByte));
  std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

std::string bytes_in(const at::Tensor& tensor) {
  const at::Tensor bytes = tensor.cpu().contiguous();
  return {static_cast<const char*>(bytes.const_data_ptr()), bytes.nbytes()};
}

// The options of an outer optimizer of Python, which writes them down as text.
class OuterOptionsInPython final : public torch::optim::OptimizerCloneableOptions<OuterOptionsInPython> {
 public:
  explicit OuterOptionsInPython(std::string text) : text_(std::move(text)) {}
  void serialize(torch::serialize::OutputArchive& archive) const override {
    archive.write("optimizer", c10::IValue(text_));
  }

 private:
  std::string text_;
};

// An outer optimizer of Python (OuterOptimizer in gradwire/distributed/optim/diloco_averager.py).
class OuterInPython final : public torch::optim::Optimizer {
 public:
  OuterInPython(ParamGroups groups, HeldObject methods)
      : Optimizer(std::move(groups), std::make_unique<OuterOptionsInPython>(text_of(methods))),
        methods_(std::move(methods)) {}

  at::Tensor step(LossClosure /*closure*/ = nullptr) override {
    in_python([&] { methods_.get().attr("step")(); });
    return {};
  }
  void save(torch::serialize::OutputArchive& archive) const override {
    const auto bytes = in_python([&] { return methods_.get().attr("save")().cast<std::string>(); });
    archive.write("state", tensor_of(bytes), /*is_buffer=*/true);
  }
  void load(torch::serialize::InputArchive& archive) override {
    at::Tensor state;
    archive.read("state", state, /*is_buffer=*/true);
    in_python([&] { methods_.get().attr("load")(py::bytes(bytes_in(state))); });
  }

 private:
  static std::string text_of(const HeldObject& methods) {
    return in_python([&] { return methods.get().attr("text")().cast<std::string>(); });
  }

  const HeldObject methods_;
};

OptimizerFactory factory_in_python(py::object make) {
  return [make = HeldObject(std::move(make))](ParamGroups groups) {
    Parameters parameters;
    for (const auto& group : groups) parameters.insert(parameters.end(), group.params().begin(), group.params().end());
    HeldObject methods = in_python([&] { return HeldObject(make.get()(parameters)); });
    return std::make_unique<OuterInPython>(std::move(groups), std::move(methods));
  };
}

OptimizerFactory nesterov(double lr, double momentum) {
  return optimizer_factory<torch::optim::SGD>(torch::optim::SGDOptions(lr).momentum(momentum).nesterov(momentum > 0));
}

std::shared_ptr<DilocoAverager> make_diloco(Parameters parameters, std::shared_ptr<ProcessGroup> group,
                                            std::int64_t inner_steps, std::int64_t fragments, std::int64_t overlap,
                                            double mixing, std::string hook, double outer_lr, double outer_momentum,
                                            py::object outer) {
  DilocoOptions options;
  options.outer = outer.is_none() ? nesterov(outer_lr, outer_momentum) : factory_in_python(std::move(outer));
  const CallerFrame caller;
  const WithoutLock unlocked;
  options.process_group = std::move(group);
  options.inner_steps = inner_steps;
  options.fragments = fragments;
  options.overlap = overlap;
  options.mixing = mixing;
  options.hook = std::move(hook);
  return std::make_shared<DilocoAverager>(std::move(parameters), std::move(options));
}

std::shared_ptr<GossipAverager> make_gossip(Parameters parameters, std::shared_ptr<ProcessGroup> group,
                                            std::int64_t inner_steps, double momentum, double lr, double gamma,
                                            std::uint64_t seed) {
  const CallerFrame caller;
  const WithoutLock unlocked;
  GossipOptions options;
  options.process_group = std::move(group);
  options.inner_steps = inner_steps;
  options.momentum = momentum;
  options.lr = lr;
  options.gamma = gamma;
  options.seed = seed;
  return std::make_shared<GossipAverager>(std::move(parameters), std::move(options));
}

at::Tensor save_averager(const ModelAverager& self) {
  torch::serialize::OutputArchive archive;
  self.save(archive);
  return tensor_of(internal::archive_bytes(archive));
}

void load_averager(ModelAverager& self, const at::Tensor& state) {
  torch::serialize::InputArchive archive = internal::read_archive(bytes_in(state));
  self.load(archive);
}

// A Python optimizer whose steps a DilocoAverager ends, for Elastic. Python steps, saves and loads it otherwise.
class SeparateOptimizerInPython final : public torch::optim::Optimizer, public SeparateOptimizer {
 public:
  SeparateOptimizerInPython(std::shared_ptr<DilocoAverager> averager, const Parameters& parameters, py::object methods)
      : Optimizer(ParamGroups{torch::optim::OptimizerParamGroup(parameters)}, std::make_unique<OptionsInPython>()),
        averager_(std::move(averager)),
        methods_(std::move(methods)) {}

  at::Tensor step(LossClosure /*closure*/ = nullptr) override {
    in_python([&] { methods_.get().attr("step")(); });
    return {};
  }
  SeparateWorkers* separate_workers() override { return averager_.get(); }
  std::string save_options() const override {
    return in_python([&] { return methods_.get().attr("_save_options")().cast<std::string>(); });
  }
  void load_options(const std::string& bytes) override {
    in_python([&] { methods_.get().attr("_load_options")(py::bytes(bytes)); });
  }

 private:
  const std::shared_ptr<DilocoAverager> averager_;
  const HeldObject methods_;
};

}  // namespace

void bind_averagers(py::module_& module) {
  auto optim = module.attr("optim").cast<py::module_>();
  py::class_<ModelAverager, std::shared_ptr<ModelAverager>>(optim, "NativeAverager", EndsUnlocked(),
                                                            "An averager of the C++ runtime.")
      .def("average_parameters", &ModelAverager::average_parameters, py::arg("parameters"), Calls())
      .def("step", &ModelAverager::step)
      .def("set_step", &ModelAverager::set_step, py::arg("step"))
      .def("abort", &ModelAverager::abort, py::arg("reason"), Unlocked())
      .def("save", &save_averager, Calls())
      .def("load", &load_averager, py::arg("state"), Calls());
  py::class_<DilocoAverager, ModelAverager, std::shared_ptr<DilocoAverager>>(optim, "DilocoAverager", EndsUnlocked(),
                                                                             "What Python's DilocoAverager is around.")
      .def(py::init(&make_diloco), py::arg("parameters"), py::arg("group"), py::arg("inner_steps"),
           py::arg("fragments"), py::arg("overlap"), py::arg("mixing"), py::arg("hook"), py::arg("outer_lr"),
           py::arg("outer_momentum"), py::arg("outer").none(true))
      .def("finish_exchanges", &DilocoAverager::finish_exchanges, Calls())
      .def("outer_parameters", &DilocoAverager::outer_parameters)
      .def("payload_bytes", &DilocoAverager::payload_bytes);
  py::class_<GossipAverager, ModelAverager, std::shared_ptr<GossipAverager>>(optim, "GossipAverager", EndsUnlocked(),
                                                                             "What Python's GossipAverager is around.")
      .def(py::init(&make_gossip), py::arg("parameters"), py::arg("group"), py::arg("inner_steps"), py::arg("momentum"),
           py::arg("lr"), py::arg("gamma"), py::arg("seed"))
      .def("slow_parameters", &GossipAverager::slow_parameters);
  optim.def("gossip_pairs", &gossip_pairs, py::arg("size"), py::arg("seed"), py::arg("round"),
            "The rank with which each rank exchanges in a round, by rank.");
  py::class_<torch::optim::Optimizer>(optim, "Optimizer", py::module_local(), EndsUnlocked(),
                                      "An optimizer as the C++ runtime knows it.");
  py::class_<SeparateOptimizerInPython, torch::optim::Optimizer>(
      optim, "SeparateOptimizer", EndsUnlocked(), "A Python optimizer whose steps a DilocoAverager ends.")
      .def(py::init<std::shared_ptr<DilocoAverager>, const Parameters&, py::object>(), py::arg("averager"),
           py::arg("parameters"), py::arg("methods"));
}

}  // namespace gradwire::python
