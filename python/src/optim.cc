// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What the optimizers in Python share with those of C++: who steps what, and how parameters travel.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "binding.h"
#include "caller_frame.h"
#include "gradwire/ddp/grad_bucket.h"
#include "gradwire/ddp/unfinished_passes_internal.h"
#include "gradwire/hooks/averaged_bucket_internal.h"
#include "gradwire/hooks/unstepped_internal.h"
#include "gradwire/hooks/wrapper_internal.h"
#include "gradwire/optim/gradient_agreement_internal.h"
#include "gradwire/optim/model_averaging.h"
#include "gradwire/optim/param_groups_internal.h"
#include "gradwire/optim/partition_internal.h"
#include "gradwire/optim/zero_internal.h"

namespace gradwire::python {
namespace {

using Tensors = std::vector<at::Tensor>;

// Runs `inner`, then a callable with the averaged bucket. The callable returns whether the parameters of the bucket are
// stepped in this iteration.
class HookThenBucket final : public internal::HookWrapper {
 public:
  HookThenBucket(const std::string& name, const std::shared_ptr<CommHook>& inner, py::object callable)
      : HookWrapper(traits_of(name, inner), inner), callable_(std::move(callable)) {}

  Future run(GradBucket& bucket) override {
    const GradBucket averaged = internal::averaged_bucket(inner(), bucket);
    const bool steps = in_python([&] { return callable_.get()(py::cast(averaged)).cast<bool>(); });
    steps ? unstepped_.add_frozen_of(averaged) : unstepped_.add_absent_of(averaged);
    return completed_future(averaged.buffer());
  }
  void revert_unused(const std::vector<std::string>& names) override { unstepped_.revert_unused(inner(), names); }
  void end_iteration() override {
    unstepped_.end_iteration();
    HookWrapper::end_iteration();
  }

 private:
  static HookTraits traits_of(const std::string& name, const std::shared_ptr<CommHook>& inner) {
    HookTraits traits = internal::traits_around(name, inner, /*keeps_single_collective=*/false);
    traits.parallel_safe = false;
    return traits;
  }

  const HeldObject callable_;
  internal::UnsteppedParameters unstepped_;
};

}  // namespace

void bind_optim(py::module_& module) {
  py::module_ optim = module.def_submodule("optim", "Parts of optimizers over several ranks.");
  py::class_<internal::GreedyPartition>(optim, "GreedyPartition",
                                        "Gives parameters to ranks: the largest first, to the rank with the fewest.")
      .def(py::init<int>(), py::arg("ranks"))
      .def("add_group", &internal::GreedyPartition::add_group, py::arg("sizes"),
           "The owners of one more group of parameters, by their numbers of elements.");
  optim.def(
      "require_same_parameters",
      [](ProcessGroup& group, const Tensors& parameters, std::size_t groups, bool views, bool overlap) {
        ZeroOptions options;
        options.parameters_as_bucket_view = views;
        options.overlap_with_ddp = overlap;
        internal::require_same_parameters(group, parameters, groups, options);
      },
      py::arg("group"), py::arg("parameters"), py::arg("groups"), py::arg("parameters_as_bucket_view"),
      py::arg("overlap_with_ddp"), Calls(), "Collective: MismatchError on all ranks when they differ.");
  optim.def("require_passes_ended", &internal::require_passes_ended, py::arg("parameters"), py::arg("before"), Calls(),
            "InvalidArgument, also for the other ranks, where a DistributedDataParallel waits for gradients of these.");
  optim.def(
      "require_open_group", [](const ProcessGroup& group) { internal::require_open_group(group); }, py::arg("group"),
      Unlocked(), "InvalidArgument where the group of a ZeroRedundancyOptimizer was shut down.");
  optim.def(
      "require_parameters",
      [](const std::string& who, const Tensors& parameters) { internal::require_parameters(who, parameters); },
      py::arg("who"), py::arg("parameters"), "Parameters are dense leaves, each there once, or InvalidArgument.");
  py::class_<internal::SharedParameters>(optim, "SharedParameters",
                                         "Parameters that one rank steps; `packs`: they lie in flat buffers.")
      .def(py::init<bool>(), py::arg("packs"))
      .def("add", &internal::SharedParameters::add, py::arg("parameters"), Unlocked(), "One more list of them.")
      .def("empty", &internal::SharedParameters::empty, "Whether no list was added.")
      .def("share", &internal::SharedParameters::share, py::arg("group"), py::arg("owner"), Calls(),
           "Collective: all ranks get the values that the parameters have on `owner`.");
  optim.def(
      "average_parameters",
      [](const Tensors& parameters, const std::shared_ptr<ProcessGroup>& group) {
        average_parameters(parameters, group);
      },
      py::arg("parameters"), py::arg("group"), Calls(), "Collective: parameters become means over the ranks.");
  optim.def(
      "average_with_gradients",
      [](const std::string& who, const Tensors& parameters, const std::shared_ptr<ProcessGroup>& group,
         std::int64_t step) { return internal::average_with_gradients(who, parameters, group, step); },
      py::arg("who"), py::arg("parameters"), py::arg("group"), py::arg("step"), Calls(),
      "Collective: the parameters with a gradient become means; MismatchError on all ranks when ranks differ in step "
      "or "
      "gradients. Returns whether there were any.");
  optim.def(
      "make_hook_then_bucket",
      [](const std::string& name, std::shared_ptr<CommHook> inner, py::object callable) -> std::shared_ptr<CommHook> {
        return std::make_shared<HookThenBucket>(name, std::move(inner), std::move(callable));
      },
      py::arg("name"), py::arg("inner"), py::arg("callable"),
      "A hook that calls `callable` with each bucket that `inner` has averaged, in bucket order. `callable` returns "
      "whether it steps the bucket in this iteration.");
}

}  // namespace gradwire::python
