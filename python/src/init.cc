// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// How a process becomes a rank, and the differentiable collectives.
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "binding.h"
#include "caller_frame.h"
#include "gradwire/backend/info.h"
#include "gradwire/backend/job/find_rendezvous.h"
#include "gradwire/base/log.h"
#include "gradwire/functional/functional.h"
#include "gradwire/process_group/backend_names.h"
#include "gradwire/process_group/init.h"
#include "gradwire/process_group/user_backends.h"

namespace gradwire::python {
namespace {

std::shared_ptr<ProcessGroup> init(const std::string& backend, const std::string& method, std::shared_ptr<Store> store,
                                   int rank, int world_size, Milliseconds timeout, const std::string& group_name,
                                   std::optional<int> cuda_device) {
  InitOptions options;
  options.backend = backend;
  options.method = method;
  options.store = std::move(store);
  options.rank = rank;
  options.world_size = world_size;
  options.timeout = timeout;
  options.group_name = group_name;
  if (cuda_device) options.device_id = at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(*cuda_device));
  return ending_unlocked(init_process_group(options));
}

std::tuple<std::shared_ptr<Store>, int, int> meet(const std::string& method, int rank, int world_size,
                                                  Milliseconds timeout) {
  Rendezvous met = find_rendezvous({.method = method, .rank = rank, .world_size = world_size, .timeout = timeout});
  return {std::move(met.store), met.rank, met.world_size};
}

std::shared_ptr<ProcessGroup> make_group(const std::string& backend, std::shared_ptr<Store> store, int rank, int size,
                                         Milliseconds timeout) {
  return ending_unlocked(make_process_group(backend, std::move(store), rank, size, timeout));
}

void add_backend(const std::string& name, py::object make) {
  GroupFactory factory = [held = HeldObject(std::move(make))](const std::shared_ptr<Store>& store, int rank, int size,
                                                              Milliseconds timeout) {
    return in_python([&] { return held.get()(store, rank, size, timeout).cast<std::shared_ptr<ProcessGroup>>(); });
  };
  const WithoutLock unlocked;
  register_backend(name, std::move(factory));
}

// PyTorch's three levels of debugging in terms of the log.
constexpr int kOff = 0;
constexpr int kInfo = 1;
constexpr int kDetail = 2;

int debug_level() {
  if (log::enabled(log::Level::debug)) return kDetail;
  return log::enabled(log::Level::info) ? kInfo : kOff;
}

void set_debug_level(int level) {
  log::set_level(level == kDetail ? log::Level::debug : level == kInfo ? log::Level::info : log::Level::off);
}

}  // namespace

void bind_init(py::module_& module) {
  module.def("debug_level", &debug_level, "0, 1 or 2: whether nothing, `info` or `debug` is logged.");
  module.def("set_debug_level", &set_debug_level, py::arg("level"));
  module.def("init_process_group", &init, py::arg("backend"), py::arg("init_method"), py::arg("store"), py::arg("rank"),
             py::arg("world_size"), py::arg("timeout"), py::arg("group_name"), py::arg("cuda_device") = py::none(),
             Calls());
  module.def("rendezvous", &meet, py::arg("method"), py::arg("rank"), py::arg("world_size"), py::arg("timeout"),
             Unlocked());
  module.def("is_initialized", &is_initialized);
  module.def("is_available", &is_available);
  module.def("default_group", &default_group);
  module.def("default_store", &default_store, Unlocked());
  module.def(
      "new_group",
      [](const std::vector<int>& ranks, const std::string& backend, const std::string& desc, Milliseconds timeout) {
        return ending_unlocked(new_group(ranks, backend, desc, timeout));
      },
      py::arg("ranks"), py::arg("backend"), py::arg("desc"), py::arg("timeout"), Calls());
  module.def(
      "new_group_among",
      [](const std::vector<int>& ranks, const std::string& backend, const std::string& desc, Milliseconds timeout) {
        return ending_unlocked(new_group_among(ranks, backend, desc, timeout));
      },
      py::arg("ranks"), py::arg("backend"), py::arg("desc"), py::arg("timeout"), Calls());
  module.def("make_process_group", &make_group, py::arg("backend"), py::arg("store"), py::arg("rank"), py::arg("size"),
             py::arg_v("timeout", kDefaultTimeout, "timedelta(minutes=30)"), Calls(),
             "A group out of a backend by name, beside the default group. The keys of `store` are this group's alone.");
  module.def("destroy_process_group", &destroy_process_group, py::arg("group") = py::none(), Calls());
  module.def("installation_info", &installation_info, Unlocked(),
             "Version, build options, usable backends and kernels, as `gradwire-run --info` prints them.");
  module.def("backend_names", &gradwire::backend_names, "The backends that init_process_group() knows.");
  module.def("register_backend", &add_backend, py::arg("name"), py::arg("make"));
  module.def("is_backend_built", &is_backend_built, py::arg("name"));
  module.attr("DEFAULT_TIMEOUT") = kDefaultTimeout;
}

void bind_functional(py::module_& module) {
  namespace f = gradwire::functional;
  py::module_ part = module.def_submodule("functional", "Collectives that autograd differentiates.");
  const auto add = [&part](const char* name, auto function, const auto&... arguments) {
    part.def(name, function, arguments..., CallsForAutograd());
  };
  const auto op = py::arg("op") = ReduceOp::sum();
  add("broadcast", &f::broadcast, py::arg("tensor"), py::arg("root"), py::arg("group"));
  add("all_reduce", &f::all_reduce, py::arg("tensor"), py::arg("group"), op);
  add("reduce", &f::reduce, py::arg("tensor"), py::arg("root"), py::arg("group"), op);
  add("reduce_scatter", &f::reduce_scatter, py::arg("inputs"), py::arg("group"), op);
  add("all_gather", &f::all_gather, py::arg("tensor"), py::arg("group"));
  add("gather", &f::gather, py::arg("tensor"), py::arg("root"), py::arg("group"));
  add("scatter", &f::scatter, py::arg("inputs"), py::arg("root"), py::arg("group"));
  add("all_to_all", &f::all_to_all, py::arg("inputs"), py::arg("group"),
      py::arg("output_sizes") = std::vector<std::vector<std::int64_t>>());
  add("all_to_all_single", &f::all_to_all_single, py::arg("input"), py::arg("group"),
      py::arg("output_splits") = std::vector<std::int64_t>(), py::arg("input_splits") = std::vector<std::int64_t>());
  add("send", &f::send, py::arg("tensor"), py::arg("destination"), py::arg("group"), py::arg("tag") = 0);
  add("recv", &f::recv, py::arg("like"), py::arg("source"), py::arg("group"), py::arg("tag") = 0);
}

}  // namespace gradwire::python
