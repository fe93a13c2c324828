// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Groups of PyTorch's as groups of gradwire, and the other way.
#include "gradwire/process_group/c10d/from_c10d.h"

#include <string>

#include "binding.h"
#include "caller_frame.h"
#include "gradwire/process_group/c10d/c10d_backend_internal.h"
#include "gradwire/process_group/c10d/c10d_store.h"
#include "gradwire/process_group/c10d/to_c10d.h"
#include "gradwire/process_group/init.h"
#include "gradwire/process_group/sparse_all_reduce_internal.h"

namespace gradwire::python {
namespace {

using BackendPtr = c10::intrusive_ptr<c10d::Backend>;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

// A group that is shut down when its last owner lets go of it.
struct OwnedGroup {
  explicit OwnedGroup(std::shared_ptr<ProcessGroup> made) : group(std::move(made)) {}
  ~OwnedGroup() {
    try {
      group->shutdown();
    } catch (const std::exception&) {
      // The group has failed already, and said so to whoever waited.
    }
  }
  OwnedGroup(const OwnedGroup&) = delete;
  OwnedGroup& operator=(const OwnedGroup&) = delete;

  const std::shared_ptr<ProcessGroup> group;
};

// As gradwire::make_c10d_backend(); PyTorch may let go of the backend with the lock held.
BackendPtr make_backend(const StorePtr& store, int rank, int size, Milliseconds timeout, const std::string& engine) {
  const auto owned =
      std::make_shared<OwnedGroup>(make_process_group(engine, store_from_c10d(store), rank, size, timeout));
  return to_c10d(ending_unlocked(std::shared_ptr<ProcessGroup>(owned, owned->group.get())));
}

// A factory that Python made, for duplicates and splits.
C10dFactory factory_from(py::object callable) {
  if (callable.is_none()) return {};
  return [held = HeldObject(std::move(callable))](const StorePtr& store, int rank, int size, Milliseconds timeout) {
    return in_python([&] { return held.get()(store, rank, size, timeout).cast<BackendPtr>(); });
  };
}

std::shared_ptr<ProcessGroup> from_backend(const BackendPtr& backend, std::shared_ptr<Store> store,
                                           py::object factory) {
  FromC10dOptions options;
  options.store = std::move(store);
  options.factory = factory_from(std::move(factory));
  const WithoutLock unlocked;
  return ending_unlocked(from_c10d(backend, options));
}

std::shared_ptr<ProcessGroup> from_group(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                                         std::shared_ptr<Store> store, py::object factory) {
  FromC10dOptions options;
  options.store = std::move(store);
  options.factory = factory_from(std::move(factory));
  const WithoutLock unlocked;
  return ending_unlocked(from_c10d(group, options));
}

// torch gives Python the class of a backend where it knows the class, and its own `Backend` has no options.
void bind_backend(py::module_& module) {
  using internal::C10dBackend;
  using internal::C10dOptions;
  using OptionsPtr = c10::intrusive_ptr<C10dOptions>;
  const auto copy = [](const C10dOptions& options) { return c10::make_intrusive<C10dOptions>(options); };
  py::class_<C10dOptions, OptionsPtr, c10d::Backend::Options>(module, "C10dOptions")
      .def("__copy__", copy)
      .def("__deepcopy__", [copy](const C10dOptions& options, const py::dict&) { return copy(options); });
  py::class_<C10dBackend, c10::intrusive_ptr<C10dBackend>, c10d::Backend>(module, "C10dBackend", EndsUnlocked())
      .def_property_readonly("options", [](C10dBackend& backend) { return backend.options(); })
      // The other name of set_timeout(), which torch's other backends have.
      .def("_set_default_timeout", &C10dBackend::setTimeout, py::arg("timeout"), Unlocked());
}

}  // namespace

void bind_c10d(py::module_& module) {
  bind_backend(module);
  module.def("make_c10d_backend", &make_backend, py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("timeout"),
             py::arg("engine") = "auto", Unlocked());
  module.def(
      "to_c10d", [](std::shared_ptr<ProcessGroup> group) { return to_c10d(ending_unlocked(std::move(group))); },
      py::arg("group"), Unlocked());
  module.def("group_under", &group_under, py::arg("backend"), Unlocked());
  module.def("from_c10d", &from_group, py::arg("group"), py::arg("store") = py::none(),
             py::arg("factory") = py::none());
  module.def("from_c10d", &from_backend, py::arg("group"), py::arg("store") = py::none(),
             py::arg("factory") = py::none());
  module.def(
      "all_reduce_sparse",
      [](at::Tensor tensor, const std::shared_ptr<ProcessGroup>& group) {
        internal::all_reduce_sparse(*group, tensor, {});
      },
      py::arg("tensor"), py::arg("group"), Calls());
  module.def("store_from_c10d", &store_from_c10d, py::arg("store"));
  module.def("store_to_c10d", &store_to_c10d, py::arg("store"));
}

}  // namespace gradwire::python
