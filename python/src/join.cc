// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Join, which Python enters and leaves, over joinables of C++ and of Python.
#include "gradwire/ddp/join.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "binding.h"
#include "caller_frame.h"
#include "gradwire/base/log.h"

namespace gradwire::python {
namespace {

using JoinablePtr = std::shared_ptr<Joinable>;

class PythonJoinHook final : public JoinHook {
 public:
  explicit PythonJoinHook(HeldObject hook) : hook_(std::move(hook)) {}
  void main_hook(const JoinRound&) override {
    in_python([&] { hook_.get().attr("main_hook")(); });
  }
  void post_hook(const JoinEnd& end) override {
    in_python([&] { hook_.get().attr("post_hook")(end.is_last_joiner); });
  }
  // A class of PyTorch's JoinHook has neither of these.
  bool is_unfinished(bool begun) const override {
    return in_python([&] {
      return py::hasattr(hook_.get(), "is_unfinished") && hook_.get().attr("is_unfinished")(begun).cast<bool>();
    });
  }
  bool abandon_hook(bool begun, const std::string& what) noexcept override {
    try {
      return in_python([&] {
        return py::hasattr(hook_.get(), "abandon_hook") && hook_.get().attr("abandon_hook")(begun, what).cast<bool>();
      });
    } catch (const std::exception& error) {
      log::error(error.what());
      return false;
    }
  }

 private:
  const HeldObject hook_;
};

// What a joinable of Python is in one Join: the hook that it made for it.
class PythonJoinable final : public Joinable {
 public:
  PythonJoinable(py::object hook, c10::Device device, std::shared_ptr<ProcessGroup> group)
      : hook_(std::move(hook)), device_(device), group_(std::move(group)) {}
  std::unique_ptr<JoinHook> join_hook(const JoinOptions&) override { return std::make_unique<PythonJoinHook>(hook_); }
  c10::Device join_device() const override { return device_; }
  std::shared_ptr<ProcessGroup> join_process_group() const override { return group_; }

 private:
  const HeldObject hook_;
  const c10::Device device_;
  const std::shared_ptr<ProcessGroup> group_;
};

class JoinContext {
 public:
  JoinContext(std::vector<JoinablePtr> joinables, JoinOptions options) : joinables_(std::move(joinables)) {
    std::vector<std::reference_wrapper<Joinable>> references;
    for (const JoinablePtr& joinable : joinables_) references.emplace_back(*joinable);
    join_ = std::make_unique<Join>(std::move(references), options);
  }
  ~JoinContext() {
    if (join_ != nullptr) fail("the Join was dropped before it was left");
  }
  JoinContext(const JoinContext&) = delete;
  JoinContext& operator=(const JoinContext&) = delete;

  void finish() {
    join_->finish();
    join_.reset();
  }
  // Leaves as a C++ scope is left with an exception whose text is `what`.
  void fail(const std::string& what) {
    const std::unique_ptr<Join> leaving = std::move(join_);
    leaving->abandon(what);
  }

 private:
  const std::vector<JoinablePtr> joinables_;
  std::unique_ptr<Join> join_;
};

std::shared_ptr<JoinContext> make_join(std::vector<JoinablePtr> joinables, bool divide_by_initial_world_size,
                                       bool enable, bool throw_on_early_termination) {
  const CallerFrame caller;
  const WithoutLock unlocked;
  JoinOptions options;
  options.enable = enable;
  options.throw_on_early_termination = throw_on_early_termination;
  options.divide_by_initial_world_size = divide_by_initial_world_size;
  return std::make_shared<JoinContext>(std::move(joinables), options);
}

}  // namespace

void bind_join(py::module_& module) {
  py::class_<Joinable, JoinablePtr>(module, "Joinable", EndsUnlocked(), "What can take part in a Join.");
  py::class_<PythonJoinable, Joinable, std::shared_ptr<PythonJoinable>>(module, "PythonJoinable", EndsUnlocked())
      .def(py::init<py::object, c10::Device, std::shared_ptr<ProcessGroup>>(), py::arg("hook"), py::arg("device"),
           py::arg("process_group"));
  py::class_<JoinContext, std::shared_ptr<JoinContext>>(module, "JoinContext", EndsUnlocked())
      .def(py::init(&make_join), py::arg("joinables"), py::arg("divide_by_initial_world_size"), py::arg("enable"),
           py::arg("throw_on_early_termination"))
      .def("finish", &JoinContext::finish, Calls())
      .def("fail", &JoinContext::fail, py::arg("what"), Calls());
  module.def(
      "notify_join", [](Joinable& joinable) { Join::notify(joinable); }, py::arg("joinable"), Calls());
}

}  // namespace gradwire::python
