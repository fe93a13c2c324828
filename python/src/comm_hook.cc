// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// GradBucket and CommHook in Python, and hooks that are Python callables.
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "binding.h"
#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/ddp/comm_hook.h"
#include "gradwire/ddp/grad_bucket.h"
#include "gradwire/process_group/lane_scope.h"

namespace gradwire::python {
namespace {

using GroupPtr = std::shared_ptr<ProcessGroup>;
using HookPtr = std::shared_ptr<CommHook>;

// The method `name` of `object`; not given where there is none.
std::optional<HeldObject> method_of(const py::object& object, const char* name) {
  py::object method = py::getattr(object, name, py::none());
  if (PyCallable_Check(method.ptr()) == 0) return std::nullopt;
  return HeldObject(std::move(method));
}

// Whether the value is, or holds, an object of Python's that is none of the kinds that a HookState has.
bool holds_an_object(const c10::IValue& value) {
  if (!value.isList()) return value.isPyObject();
  const auto elements = value.toListRef();
  return std::any_of(elements.begin(), elements.end(), holds_an_object);
}

// The state that a state_dict() returned.
HookState checked_state(const py::object& state, const std::string& hook) {
  if (!py::isinstance<py::dict>(state))
    throw InvalidArgument(concat("state_dict() of the hook '", hook, "' returned no dict."));
  for (const auto& [key, value] : state.cast<py::dict>()) {
    if (!py::isinstance<py::str>(key))
      throw InvalidArgument(concat("state_dict() of the hook '", hook, "' has the key ",
                                   py::repr(key).cast<std::string>(), "; give keys that are texts."));
  }
  HookState converted = hook_state_from(state.cast<py::dict>());
  for (const auto& [key, value] : converted) {
    if (holds_an_object(value))
      throw InvalidArgument(concat("state_dict() of the hook '", hook, "' has something else under '", key,
                                   "' than tensors, numbers, bools, strings and lists of these."));
  }
  return converted;
}

// With tensors that share no memory with those of `state`, on the CPU.
HookState copy_of(const HookState& state) {
  HookState out;
  for (const auto& [key, value] : state) {
    out.emplace(key, value.isTensor() ? value.toTensor().detach().to(at::kCPU, /*non_blocking=*/false, /*copy=*/true)
                                      : value.deepcopy());
  }
  return out;
}

// A callable (state, bucket) that returns a torch.futures.Future, or the tensor itself. The state may have the methods
// revert_unused() and end_iteration() of a CommHook, and state_dict() together with load_state_dict(). A state_dict()
// in Python usually returns the tensors that it goes on with, so that both ways copy.
class PythonHook final : public CommHook {
 public:
  PythonHook(py::object state, py::object callable, HookTraits traits)
      : CommHook(std::move(traits)),
        state_(state),
        callable_(std::move(callable)),
        revert_unused_(method_of(state, "revert_unused")),
        end_iteration_(method_of(state, "end_iteration")),
        state_dict_(method_of(state, "state_dict")),
        load_state_dict_(method_of(state, "load_state_dict")) {}

  Future run(GradBucket& bucket) override {
    return in_python([&] {
      const py::object result = callable_.get()(state_.get(), py::cast(GradBucket(bucket)));
      return THPVariable_Check(result.ptr()) ? completed_future(result.cast<at::Tensor>()) : future_from(result);
    });
  }

  void revert_unused(const std::vector<std::string>& names) override {
    if (revert_unused_) in_python([&] { revert_unused_->get()(names); });
  }
  void end_iteration() override {
    if (end_iteration_) in_python([&] { end_iteration_->get()(); });
  }
  HookState state_dict() const override {
    if (!has_state()) return CommHook::state_dict();
    return in_python([&] { return copy_of(checked_state(state_dict_->get()(), traits().name)); });
  }
  void load_state_dict(const HookState& state) override {
    if (!has_state()) return CommHook::load_state_dict(state);
    in_python([&] { load_state_dict_->get()(dict_of(copy_of(state))); });
  }

 private:
  bool has_state() const noexcept { return state_dict_ && load_state_dict_; }

  const HeldObject state_;
  const HeldObject callable_;
  const std::optional<HeldObject> revert_unused_;
  const std::optional<HeldObject> end_iteration_;
  const std::optional<HeldObject> state_dict_;
  const std::optional<HeldObject> load_state_dict_;
};

HookPtr make_python_hook(py::object state, py::object callable, const std::string& name, bool parallel_safe,
                         bool single_collective, std::vector<GroupPtr> groups) {
  HookTraits traits{name, parallel_safe, single_collective, std::move(groups)};
  return std::make_shared<PythonHook>(std::move(state), std::move(callable), std::move(traits));
}

// Where gradient `i` of a bucket of PyTorch's DistributedDataParallel lies. The buffer of complex parameters is real,
// and PyTorch's views into it have the offsets and sizes of complex numbers: half of what they are in the buffer.
BucketLayout::Slot slot_of(std::size_t i, const at::Tensor& parameter, const at::Tensor& gradient,
                           const at::Tensor& buffer) {
  BucketLayout::Slot slot{i, gradient.storage_offset() - buffer.storage_offset(), gradient.numel(),
                          gradient.sizes().vec(), gradient.strides().vec()};
  if (!parameter.is_complex() || buffer.is_complex()) return slot;
  slot.offset *= 2;
  slot.numel *= 2;
  for (std::int64_t& stride : slot.strides) stride *= 2;
  slot.sizes.push_back(2);
  slot.strides.push_back(1);
  return slot;
}

// A bucket of PyTorch's DistributedDataParallel, whose `gradients` are views into `buffer`.
GradBucket make_grad_bucket(std::size_t index, const at::Tensor& buffer, const std::vector<at::Tensor>& parameters,
                            const std::vector<std::string>& names, const std::vector<at::Tensor>& gradients,
                            const GroupPtr& group, bool is_last, std::uint32_t iteration) {
  auto layout = std::make_shared<BucketLayout>();
  layout->index = index;
  layout->numel = buffer.numel();
  layout->dtype = buffer.scalar_type();
  layout->device = buffer.device();
  layout->parameters = parameters;
  layout->names = names;
  std::int64_t covered = 0;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    layout->slots.push_back(slot_of(i, parameters.at(i), gradients[i], buffer));
    covered += layout->slots.back().numel;
  }
  if (covered != buffer.numel()) {
    throw UnsupportedError(concat("bucket ", index, " of PyTorch's DistributedDataParallel has ", buffer.numel(),
                                  " values, and its gradients are ", covered,
                                  " of them; gradwire's hooks do not know what the others are"));
  }
  return {std::move(layout), buffer, *group, group->size(), is_last, iteration};
}

// Whether calls on `other` go to `group` on this thread, a lane of DDP's.
bool stands_for(ProcessGroup& group, ProcessGroup& other) {
  const LaneScope* const lane = LaneScope::current();
  if (lane == nullptr || &group == &other) return false;
  try {
    return &lane->route(other) == &group;
  } catch (const InvalidArgument&) {
    return false;
  }
}

// The group of `bucket`. Throws InvalidArgument when the group has gone: Python may keep a bucket.
std::shared_ptr<ProcessGroup> live_group_of(const GradBucket& bucket) {
  std::shared_ptr<ProcessGroup> group = bucket.shared_group();
  if (group == nullptr)
    throw InvalidArgument(concat("The group of bucket ", bucket.index(), " has gone, with the DistributedDataParallel ",
                                 "that made the bucket. Use a bucket in the hook's call alone."));
  return group;
}

// The bucket's group, which Python knows by the ranks of the group that it is a duplicate of.
py::object group_of_bucket(const GradBucket& bucket) {
  py::object group = py::cast(live_group_of(bucket));
  py::module_::import("gradwire.distributed._groups").attr("_note_duplicate")(group);
  return group;
}

}  // namespace

void bind_comm_hook(py::module_& module) {
  py::class_<GradBucket>(module, "GradBucket", EndsUnlocked(),
                         R"(One bucket of gradients, ready on this rank: what a hook gets.

The hook may read and write buffer() and its views until its future completes. Nothing has been divided yet: sums are to
be divided by `divisor`, and collectives to go through `group`.)")
      .def("index", &GradBucket::index, "Buckets count from 0 in the order of their launch, the same on all ranks.")
      .def("is_last", &GradBucket::is_last, "Whether it is the last bucket of this iteration. Exactly one is.")
      .def("buffer", &GradBucket::buffer, "The gradients, flat: 1-D and contiguous.")
      .def("set_buffer", &GradBucket::set_buffer, py::arg("tensor"), "Replaces buffer(), by as many elements.")
      .def("gradients", &GradBucket::gradients, "Views into buffer(), one a parameter, with its sizes and strides.")
      .def("parameters", &GradBucket::parameters, "The parameters, in the order of gradients().")
      .def("parameter_names", &GradBucket::parameter_names, "Their names in the module.")
      .def("absent", &GradBucket::absent,
           "The places, in the order of gradients(), of the parameters that got no gradient on this rank since the "
           "iteration before.")
      .def_property_readonly("iteration", &GradBucket::iteration, "Counts synchronized backward passes from 0.")
      .def_property_readonly(
          "divisor", [](const GradBucket& bucket) { return bucket.divisor(); }, "The number of ranks that take part.")
      .def_property_readonly("joined", &GradBucket::joined,
                             "Whether this rank has no inputs left, and takes part with zeros (Join).")
      .def_property_readonly("group", &group_of_bucket, "The group for this bucket's collectives.");
  module.def("stands_for", &stands_for, py::arg("group"), py::arg("other"));
  module.def("make_grad_bucket", &make_grad_bucket, py::arg("index"), py::arg("buffer"), py::arg("parameters"),
             py::arg("names"), py::arg("gradients"), py::arg("group"), py::arg("is_last"), py::arg("iteration"),
             py::keep_alive<0, 6>());
  py::class_<CommHook, HookPtr>(module, "CommHook", EndsUnlocked(),
                                "A hook of the C++ runtime, as register_comm_hook() takes it.")
      .def_property_readonly("name", [](const CommHook& self) { return self.traits().name; })
      .def_property_readonly("parallel_safe", [](const CommHook& self) { return self.traits().parallel_safe; })
      .def_property_readonly(
          "groups", [](const CommHook& self) { return self.traits().groups; },
          "The groups that it goes through instead of the model's own.")
      .def(
          "state_dict", [](const CommHook& self) { return dict_of(self.state_dict()); },
          "What the hook remembers; keys that begin with 'local/' are this rank's own. Between iterations only.")
      .def(
          "load_state_dict",
          [](CommHook& self, const py::dict& state) { self.load_state_dict(hook_state_from(state)); }, py::arg("state"))
      .def(
          "run",
          [](CommHook& self, GradBucket& bucket) {
            Future future;
            {
              const WithoutLock unlocked;
              const std::shared_ptr<ProcessGroup> held = live_group_of(bucket);
              future = self.run(bucket);
            }
            return python_future(std::move(future));
          },
          py::arg("bucket"), "What is done with one bucket; a torch.futures.Future of what becomes the gradients.")
      .def("__repr__", [](const CommHook& self) { return "<gradwire hook '" + self.traits().name + "'>"; });
  module.def("make_python_hook", &make_python_hook, py::arg("state"), py::arg("callable"), py::arg("name"),
             py::arg("parallel_safe"), py::arg("single_collective"), py::arg("groups"));
}

}  // namespace gradwire::python
