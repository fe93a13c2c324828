// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What the sources of the extension module share.
//
// The interpreter's lock (GIL): every method that may wait releases it; what calls into Python takes it. Nothing here
// holds it while it takes a lock of gradwire's (but that of end.cc, whose holders never want the GIL) or joins a
// thread. That includes the end of an object, which may join a thread that wants the lock: classes are bound with
// EndsUnlocked, and groups that C++ may be the last to hold are handed out by ending_unlocked().
#pragma once

#include <pybind11/chrono.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <exception>
#include <memory>
#include <utility>

#include "duration_caster.h"
#include "gradwire/base/backward_errors.h"
#include "gradwire/base/error.h"
#include "gradwire/ddp/comm_hook.h"
#include "gradwire/process_group/work.h"

namespace gradwire::python {

namespace py = pybind11;

// While it exists, this thread is within C++ and may have to wait for the interpreter's lock: the end of the
// interpreter gives it the time (end.cc). It begins and ends with the lock held.
class WithinCpp {
 public:
  WithinCpp() noexcept;
  ~WithinCpp();
  WithinCpp(const WithinCpp&) = delete;
  WithinCpp& operator=(const WithinCpp&) = delete;
};

// While it exists, this thread does not hold the interpreter's lock, which it takes again at the end.
class WithoutLock {
 public:
  WithoutLock() = default;
  WithoutLock(const WithoutLock&) = delete;
  WithoutLock& operator=(const WithoutLock&) = delete;

 private:
  const WithinCpp within_;
  const py::gil_scoped_release released_;
};

// The guard of a method that may wait; not of a constructor, whose object pybind11 would register without the lock.
using Unlocked = py::call_guard<WithoutLock>;

// For py::class_, of each class whose objects may wait at their end (groups, and what holds one): pybind11 destroys
// them without the lock. A class does not inherit this.
using EndsUnlocked = py::release_gil_before_calling_cpp_dtor;

// Each adds its part to the module.
void bind_errors(py::module_& module);
void bind_reduce_op(py::module_& module);
void bind_stores(py::module_& module);
void bind_work(py::module_& module);
void bind_options(py::module_& module);
void bind_process_group(py::module_& module);
void bind_init(py::module_& module);
void bind_functional(py::module_& module);
void bind_nn(py::module_& module);
void bind_comm_hook(py::module_& module);
void bind_hooks(py::module_& module);
void bind_auto_hook(py::module_& module, py::module_& hooks);  // of bind_hooks(): the class, and its functions
void bind_power_sgd(py::module_& hooks);                       // of bind_hooks()
void bind_optim(py::module_& module);
void bind_averagers(py::module_& module);
void bind_join(py::module_& module);
void bind_ddp(py::module_& module);
void bind_elastic(py::module_& module);
void bind_c10d(py::module_& module);
void bind_end(py::module_& module);
void bind_observe(py::module_& module);

// The Python exception of `error`, with the lock held: one of the family in gradwire/_errors.py for gradwire's own,
// what Python raised for Python's own, else RuntimeError.
py::object exception_of(const std::exception_ptr& error);

// A TranslateError: as above, on threads that do not hold the lock.
void rethrow_as_python(const std::exception_ptr& error);

// While it exists, errors of backward passes to which the calls of this thread lead are Python's.
struct PythonInBackward : BackwardErrors {
  PythonInBackward() noexcept : BackwardErrors(&rethrow_as_python) {}
};

// Futures, with the lock held. A future that Python made holds a Python object; future_from() gives one that holds the
// tensor or list of tensors in it. Throws a TypeError for what is no torch.futures.Future.
py::object python_future(Future future);
Future future_from(py::handle object);

// A hook as Python's CommHook, or AutoHook where it is one; with the lock held.
py::object hook_object(const std::shared_ptr<CommHook>& hook);

// A hook's state as a dict, and back; with the lock held.
py::dict dict_of(const HookState& state);
HookState hook_state_from(const py::dict& state);

// Whether this thread may take the lock. At the end of the interpreter only the thread that ends it may, and after that
// nobody: any other thread would be ended where it waits.
bool may_take_lock() noexcept;

// Drops `object`, without the lock where this thread holds it.
void drop_unlocked(std::shared_ptr<void> object);

// `object` for owners that may drop it with the lock held: a tensor's graph, a backend of torch.distributed.
template <class T>
std::shared_ptr<T> ending_unlocked(std::shared_ptr<T> object) {
  T* const raw = object.get();
  if (raw == nullptr) return nullptr;
  return {raw, [held = std::move(object)](T*) mutable { drop_unlocked(std::move(held)); }};
}

// A Python object that C++ may drop on any thread, with or without the lock. Where the interpreter has ended before, it
// is left to the system.
class HeldObject {
 public:
  explicit HeldObject(py::object object) : object_(new py::object(std::move(object)), &drop) {}
  const py::object& get() const noexcept { return *object_; }

 private:
  static void drop(py::object* held) {
    if (!may_take_lock()) return;
    const py::gil_scoped_acquire lock;
    delete held;
  }

  std::shared_ptr<py::object> object_;
};

// Throws torch's python_error for what Python has just raised: pybind11's own type can be shown to Python only once,
// but an error of a group or of DDP is thrown again and again.
[[noreturn]] void throw_python_error(py::error_already_set& raised);

// Runs `call`, which goes into Python, with the lock held.
template <class Call>
auto in_python(const Call& call) -> decltype(call()) {
  const py::gil_scoped_acquire lock;
  try {
    return call();
  } catch (py::error_already_set& raised) {
    throw_python_error(raised);
  } catch (const py::builtin_exception& wrong) {
    wrong.set_error();
    py::error_already_set raised;
    throw_python_error(raised);
  }
}

// Calls the method `name` that a Python class derived from Base overrides: `convert` makes the result of what it
// returns, with the lock held. Where there is none, `otherwise` is called without it.
template <class Base, class Convert, class Otherwise, class... Args>
auto overridden(const Base* self, const char* name, const Convert& convert, const Otherwise& otherwise, Args&&... args)
    -> decltype(otherwise()) {
  {
    const py::gil_scoped_acquire lock;
    if (const py::function method = py::get_override(self, name))
      return in_python([&] { return convert(method(std::forward<Args>(args)...)); });
  }
  return otherwise();
}

}  // namespace gradwire::python
