// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The ready-made hooks in Python.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "binding.h"
#include "caller_frame.h"
#include "gradwire/hooks/auto_hook.h"
#include "gradwire/hooks/clip_hook.h"
#include "gradwire/hooks/compress_wrappers.h"
#include "gradwire/hooks/compressed_hook.h"
#include "gradwire/hooks/debugging_hooks.h"
#include "gradwire/hooks/default_hooks.h"
#include "gradwire/hooks/mixed_precision_hooks.h"
#include "gradwire/hooks/optimizer_overlap_hooks.h"
#include "gradwire/hooks/post_local_sgd_hook.h"
#include "gradwire/hooks/quantization_hooks.h"
#include "gradwire/hooks/registry.h"

namespace gradwire::python {
namespace {

using GroupPtr = std::shared_ptr<ProcessGroup>;
using HookPtr = std::shared_ptr<CommHook>;

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

}  // namespace

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
            py::arg("group") = py::none(), py::arg("iteration") = 0, Calls());
  bind_auto_hook(module, hooks);
  bind_power_sgd(hooks);
}

}  // namespace gradwire::python
