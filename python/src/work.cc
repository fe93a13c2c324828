// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Work, which Python classes may derive from.
#include <pybind11/trampoline_self_life_support.h>

#include <optional>
#include <vector>

#include "binding.h"
#include "caller_frame.h"
#include "gradwire/process_group/work_internal.h"

namespace gradwire::python {
namespace {

// The Python names of the virtuals are c10d's.
class PyWork final : public Work, public py::trampoline_self_life_support {
 public:
  bool wait(Milliseconds timeout) override {
    const auto truth = [](const py::object& result) { return result.is_none() || result.cast<bool>(); };
    return overridden(
        base(), "wait", truth, [&] { return Work::wait(timeout); }, timeout);
  }
  Future future() override {
    return overridden(
        base(), "get_future", [](const py::object& result) { return future_from(result); },
        [&] { return Work::future(); });
  }
  bool is_completed() override {
    return overridden(base(), "is_completed", cast<bool>, [&] { return Work::is_completed(); });
  }
  bool is_success() override {
    return overridden(base(), "is_success", cast<bool>, [&] { return Work::is_success(); });
  }
  std::vector<at::Tensor> result() override {
    return overridden(base(), "result", cast<std::vector<at::Tensor>>, [&] { return Work::result(); });
  }
  void block_current_stream() override {
    return overridden(
        base(), "block_current_stream", [](const py::object&) {}, [&] { Work::block_current_stream(); });
  }
  int source_rank() const override {
    return overridden(static_cast<const Work*>(this), "_source_rank", cast<int>, [&] { return Work::source_rank(); });
  }

 private:
  const Work* base() const noexcept { return this; }
  template <class T>
  static T cast(const py::object& object) {
    return object.cast<T>();
  }
};

// The line of the program is looked for where the wait may last: not after a call that had waited itself.
bool wait_from_here(Work& work, Milliseconds timeout) {
  std::optional<CallerFrame> caller;
  if (!internal::may_be_asked(work) || !work.is_completed()) caller.emplace();
  const WithoutLock unlocked;
  return work.wait(timeout);
}

py::object future_of(Work& work) {
  Future future;
  {
    const WithoutLock unlocked;
    future = work.future();
  }
  return python_future(std::move(future));
}

py::object exception_in(Work& work) {
  std::exception_ptr error;
  {
    const WithoutLock unlocked;
    error = work.exception();
  }
  return error ? exception_of(error) : py::none();
}

}  // namespace

void bind_work(py::module_& module) {
  py::class_<Work, PyWork, py::smart_holder>(module, "Work", EndsUnlocked(), R"(A collective under way.

Derive and override ``get_future()`` (or ``wait(timeout)``) alone; the other methods are made of it. A Work may be
dropped before it ends, and waited for several times, from several threads.)")
      .def(py::init<>())
      .def("wait", &wait_from_here, py::arg("timeout") = Work::kNoTimeout,
           R"(Waits for the end and returns True; other Python threads run meanwhile.

timeout: a timedelta; zero means the one the call was made with. Raises the error of the collective, TimeoutError when
`timeout` passes first (the collective goes on). On CUDA tensors the current stream waits, not the CPU.)")
      .def(
          "synchronize", [](Work& work) { wait_from_here(work, Work::kNoTimeout); }, "wait() without a result.")
      .def("get_future", &future_of, "A torch.futures.Future of the list of output tensors.")
      .def("is_completed", &Work::is_completed, Unlocked(), "Whether it has ended, well or with an error.")
      .def("is_success", &Work::is_success, Unlocked(), "Whether it has ended well.")
      .def("exception", &exception_in, "The exception that it ended with, or None.")
      .def("result", &Work::result, Unlocked(), "The output tensors of a completed Work; raises its error.")
      .def("block_current_stream", &Work::block_current_stream, Unlocked(),
           "Makes the current CUDA stream wait, without blocking the CPU; without CUDA waits on the CPU.")
      .def("source_rank", &Work::source_rank, Unlocked(), "The rank that a receive came from.")
      .def("_source_rank", &Work::source_rank, Unlocked(), "source_rank(), to override.");
  module.def(
      "_create_work_from_future", [](py::handle future) { return work_from_future(future_from(future)); },
      py::arg("future"), "A Work whose every answer comes from a torch.futures.Future.");
}

}  // namespace gradwire::python
