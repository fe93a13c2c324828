// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The hook "auto" in Python.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "binding.h"
#include "gradwire/base/error.h"
#include "gradwire/hooks/auto_hook.h"

namespace gradwire::python {
namespace {

HookAccuracy accuracy_of(const std::string& name) {
  if (name == "exact") return HookAccuracy::exact;
  if (name == "rounding") return HookAccuracy::rounding;
  if (name == "any") return HookAccuracy::any;
  throw InvalidArgument("hooks.auto(): accuracy is '" + name + "'; it must be 'exact', 'rounding' or 'any'.");
}

std::shared_ptr<CommHook> make_auto(const std::string& accuracy, const std::vector<std::string>& hooks, double gain,
                                    std::shared_ptr<ProcessGroup> group, bool shape) {
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

}  // namespace

py::object hook_object(const std::shared_ptr<CommHook>& hook) {
  if (const auto chooses = std::dynamic_pointer_cast<AutoHook>(hook)) return py::cast(chooses);
  return py::cast(hook);
}

void bind_auto_hook(py::module_& module, py::module_& hooks) {
  py::class_<AutoHook, CommHook, std::shared_ptr<AutoHook>>(
      module, "AutoHook", "A hook that measures other hooks, and goes on with the fastest.")
      .def_property_readonly("current", &AutoHook::current, "The name of the hook that the last bucket used.")
      .def_property_readonly(
          "current_shape", [](const AutoHook& hook) { return shape_dict(hook.current_shape()); },
          "cap_bytes and lanes of the last bucket; 0: DDP's own.")
      .def_property_readonly("choices", &choices_of,
                             "The decisions so far: iteration (the first one with the hook), hook, and seconds: by "
                             "hook, the time from the first bucket of a step to the end of the last one (infinite: not "
                             "measured).");
  hooks.def(
      "make_auto_hook",
      [](const std::string& accuracy, const std::vector<std::string>& hooks, double gain,
         std::shared_ptr<ProcessGroup> group,
         bool shape) { return hook_object(make_auto(accuracy, hooks, gain, std::move(group), shape)); },
      py::arg("accuracy") = "rounding", py::arg("hooks") = std::vector<std::string>(), py::arg("gain") = 0.01,
      py::arg("group") = py::none(), py::arg("shape") = true);
  hooks.def("auto_hook_candidates",
            [](const std::string& accuracy) { return auto_hook_candidates(accuracy_of(accuracy)); });
}

}  // namespace gradwire::python
