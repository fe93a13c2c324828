// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Hooks: GradBucket, hooks in Python, and the ready-made ones.
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "binding.h"
#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/ddp/grad_bucket.h"
#include "gradwire/hooks/auto_hook.h"
#include "gradwire/hooks/clip_hook.h"
#include "gradwire/hooks/compress_wrappers.h"
#include "gradwire/hooks/compressed_hook.h"
#include "gradwire/hooks/debugging_hooks.h"
#include "gradwire/hooks/default_hooks.h"
#include "gradwire/hooks/mixed_precision_hooks.h"
#include "gradwire/hooks/optimizer_overlap_hooks.h"
#include "gradwire/hooks/policy_hook.h"
#include "gradwire/hooks/post_local_sgd_hook.h"
#include "gradwire/hooks/power_sgd.h"
#include "gradwire/hooks/quantization_hooks.h"
#include "gradwire/hooks/registry.h"
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

// As Python's "auto" hook where the hook is one.
py::object hook_object(const HookPtr& hook) {
  if (const auto chooses = std::dynamic_pointer_cast<AutoHook>(hook)) return py::cast(chooses);
  return py::cast(hook);
}

HookAccuracy accuracy_of(const std::string& name) {
  if (name == "exact") return HookAccuracy::exact;
  if (name == "rounding") return HookAccuracy::rounding;
  if (name == "any") return HookAccuracy::any;
  throw InvalidArgument("hooks.auto(): accuracy is '" + name + "'; it must be 'exact', 'rounding' or 'any'.");
}

HookPtr make_auto(const std::string& accuracy, const std::vector<std::string>& hooks, double gain, GroupPtr group,
                  bool shape) {
  AutoHookOptions options;
  options.accuracy = accuracy_of(accuracy);
  options.hooks = hooks;
  options.gain = gain;
  options.shape = shape;
  return make_auto_hook(options, std::move(group));
}

py::dict shape_dict(const ReductionShape& shape) {
  py::dict out;
  out["cap_bytes"] = shape.cap_bytes;
  out["lanes"] = shape.lanes;
  return out;
}

py::list choices_of(const AutoHook& hook) {
  py::list out;
  for (const HookChoice& choice : hook.choices()) {
    py::dict costs;
    for (const HookTimes& times : choice.measured) costs[py::str(times.hook)] = times.cost;
    py::dict one;
    one["iteration"] = choice.iteration;
    one["hook"] = choice.hook;
    one["seconds"] = costs;
    one["shape"] = shape_dict(choice.shape);
    py::list shapes;
    for (const ShapeTimes& times : choice.shapes) shapes.append(py::make_tuple(shape_dict(times.shape), times.cost));
    one["shapes"] = shapes;
    out.append(one);
  }
  return out;
}

py::dict record_dict(const BucketRecord& record) {
  py::dict out;
  out["iteration"] = record.iteration;
  out["bucket"] = record.bucket;
  out["is_last"] = record.is_last;
  out["numel"] = record.numel;
  out["dtype"] = record.dtype;
  out["norm_before"] = record.norm_before;
  out["norm_after"] = record.norm_after;
  out["seconds"] = record.seconds;
  return out;
}

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
      .def(py::init<PowerSGDOptions, GroupPtr>(), py::arg("options"), py::arg("group"))
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
  py::class_<AutoHook, CommHook, std::shared_ptr<AutoHook>>(
      module, "AutoHook", "A hook that measures other hooks, and goes on with the fastest.")
      .def_property_readonly("current", &AutoHook::current, "The name of the hook that the last bucket used.")
      .def_property_readonly(
          "current_shape", [](const AutoHook& hook) { return shape_dict(hook.current_shape()); },
          "cap_bytes and lanes of the last bucket; 0: DDP's own.")
      .def_property_readonly("choices", &choices_of,
                             "The decisions so far: iteration (the first one with the hook), hook, and seconds: by "
                             "hook, the time from the "
                             "first bucket of a step to the end of the last one (infinite: not measured).");
  module.def("make_python_hook", &make_python_hook, py::arg("state"), py::arg("callable"), py::arg("name"),
             py::arg("parallel_safe"), py::arg("single_collective"), py::arg("groups"));
}

void bind_hooks(py::module_& module) {
  py::module_ hooks = module.def_submodule("hooks", "Ready-made hooks.");
  hooks.def("make_allreduce_hook", &make_allreduce_hook, py::arg("group") = py::none());
  hooks.def("make_fp16_compress_hook", &make_fp16_compress_hook, py::arg("group") = py::none());
  hooks.def("make_bf16_compress_hook", &make_bf16_compress_hook, py::arg("group") = py::none());
  hooks.def("make_noop_hook", &make_noop_hook);
  hooks.def("make_quantization_pertensor_hook", &make_quantization_pertensor_hook, py::arg("group") = py::none());
  hooks.def("make_quantization_perchannel_hook", &make_quantization_perchannel_hook, py::arg("group") = py::none());
  hooks.def("make_fp16_compress_wrapper", &make_fp16_compress_wrapper, py::arg("inner"));
  hooks.def("make_bf16_compress_wrapper", &make_bf16_compress_wrapper, py::arg("inner"));
  hooks.def("make_reduce_in_dtype_hook", &make_reduce_in_dtype_hook, py::arg("dtype"), py::arg("group") = py::none());
  hooks.def(
      "make_post_local_sgd_hook",
      [](GroupPtr group, GroupPtr subgroup, std::int64_t start, bool all_reduce) {
        return make_post_local_sgd_hook({std::move(group), std::move(subgroup), start, all_reduce});
      },
      py::arg("process_group"), py::arg("subgroup"), py::arg("start_iteration"),
      py::arg("post_local_gradient_allreduce"));
  hooks.def(
      "make_compressed_hook",
      [](const std::string& description, bool plain_vectors, GroupPtr group) {
        return make_compressed_hook(description, {.plain_vectors = plain_vectors}, std::move(group));
      },
      py::arg("description"), py::arg("plain_vectors") = false, py::arg("group") = py::none());
  hooks.def("make_checking_hook", &make_checking_hook, py::arg("inner"));
  hooks.def(
      "make_logging_hook",
      [](HookPtr inner, py::object sink) {
        return make_logging_hook(std::move(inner), [held = HeldObject(std::move(sink))](const BucketRecord& record) {
          in_python([&] { held.get()(record_dict(record)); });
        });
      },
      py::arg("inner"), py::arg("sink"));
  hooks.def(
      "make_hook_then_step",
      [](HookPtr inner, py::object step) {
        return make_hook_then_step(
            std::move(inner),
            [held = HeldObject(std::move(step))](const std::string& name, at::Tensor parameter, at::Tensor gradient) {
              in_python([&] { held.get()(name, parameter, gradient); });
            });
      },
      py::arg("inner"), py::arg("step"));
  hooks.def(
      "make_hook",
      [](const std::string& spec, GroupPtr group) { return hook_object(make_hook(spec, std::move(group))); },
      py::arg("spec"), py::arg("group") = py::none());
  hooks.def(
      "make_auto_hook",
      [](const std::string& accuracy, const std::vector<std::string>& hooks, double gain, GroupPtr group, bool shape) {
        return hook_object(make_auto(accuracy, hooks, gain, std::move(group), shape));
      },
      py::arg("accuracy") = "rounding", py::arg("hooks") = std::vector<std::string>(), py::arg("gain") = 0.01,
      py::arg("group") = py::none(), py::arg("shape") = true);
  hooks.def("auto_hook_candidates",
            [](const std::string& accuracy) { return auto_hook_candidates(accuracy_of(accuracy)); });
  hooks.def("hook_names", &hook_names);
  hooks.def("known_hooks", [] {
    py::list out;
    for (const HookInfo& info : known_hooks())
      out.append(py::make_tuple(py::str(std::string(info.name)), py::str(std::string(info.options)),
                                py::str(std::string(info.bytes)), py::str(std::string(info.paper))));
    return out;
  });
  hooks.def(
      "clip_grad_norm",
      [](const std::vector<at::Tensor>& parameters, double max_norm, bool max) {
        return clip_grad_norm(parameters, max_norm, max ? NormKind::kMax : NormKind::kL2);
      },
      py::arg("parameters"), py::arg("max_norm"), py::arg("max") = false, Unlocked());
  hooks.def("reduce_gradients", &reduce_gradients, py::arg("parameters"), py::arg("hook") = py::none(),
            py::arg("group") = py::none(), py::arg("iteration") = 0, Unlocked());
  bind_power_sgd(hooks);
}

}  // namespace gradwire::python
