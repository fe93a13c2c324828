// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include <torch/csrc/Exceptions.h>

#include "binding.h"
#include "gradwire/base/interrupt.h"
#include "gradwire/base/strings.h"
#include "gradwire/ddp/join.h"

namespace gradwire::python {
namespace {

const char* class_name(const Error& error) {
  if (dynamic_cast<const InvalidArgument*>(&error) != nullptr) return "InvalidArgument";
  if (dynamic_cast<const UnsupportedError*>(&error) != nullptr) return "UnsupportedError";
  if (dynamic_cast<const MismatchError*>(&error) != nullptr) return "MismatchError";
  if (dynamic_cast<const PeerError*>(&error) != nullptr) return "PeerError";
  if (dynamic_cast<const TimeoutError*>(&error) != nullptr) return "TimeoutError";
  if (dynamic_cast<const AbortedError*>(&error) != nullptr) return "AbortedError";
  if (dynamic_cast<const ResourceError*>(&error) != nullptr) return "ResourceError";
  if (dynamic_cast<const StoreError*>(&error) != nullptr) return "StoreError";
  if (dynamic_cast<const InternalError*>(&error) != nullptr) return "InternalError";
  if (dynamic_cast<const EarlyTermination*>(&error) != nullptr) return "EarlyTermination";
  return "DistError";
}

py::object own_exception(const Error& error) {
  py::object made = py::module_::import("gradwire._errors").attr(class_name(error))(error.what());
  if (const auto* peer = dynamic_cast<const PeerError*>(&error)) made.attr("peers") = peer->peers();
  if (const auto* timeout = dynamic_cast<const TimeoutError*>(&error)) made.attr("peers") = timeout->peers();
  return made;
}

// Takes the exception that is being raised in this thread.
py::object raised_exception() {
  py::error_already_set raised;
  return raised.value();
}

void raise(const py::object& exception) { PyErr_SetObject(py::type::handle_of(exception).ptr(), exception.ptr()); }

// What a signal's handler raised while a call was waiting: the call ends with an AbortedError, and this takes its
// place. Of the main thread alone, where handlers run.
PyObject* raised_by_signal = nullptr;

bool look_for_signals() noexcept {
  const py::gil_scoped_acquire lock;
  if (raised_by_signal != nullptr) return true;
  if (PyErr_CheckSignals() == 0) return false;
  py::error_already_set raised;
  raised_by_signal = py::object(raised.value()).release().ptr();
  return true;
}

bool raise_for_signal() {
  if (raised_by_signal == nullptr || interrupt_check() != &look_for_signals) return false;
  const auto exception = py::reinterpret_steal<py::object>(std::exchange(raised_by_signal, nullptr));
  raise(exception);
  return true;
}

// The words of Python's own exception, which autograd keeps without its class.
void name_class(python_error& raised) {
  if (!may_take_lock()) return;
  const py::gil_scoped_acquire lock;
  if (raised.type == nullptr) return;
  const std::string name = reinterpret_cast<const PyTypeObject*>(raised.type)->tp_name;
  if (raised.message.starts_with(name)) return;
  // Autograd says "python_error" for an exception without words.
  const bool has_words = !raised.message.empty() && raised.message != "python_error";
  raised.message = has_words ? concat(name, ": ", raised.message) : name;
}

}  // namespace

void throw_python_error(py::error_already_set& raised) {
  std::string message = raised.what();  // with the traceback, for the log and the other ranks
  raised.restore();
  python_error lasting;
  lasting.persist();
  lasting.message = std::move(message);
  throw lasting;
}

py::object exception_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& own) {
    return own_exception(own);
  } catch (py::error_already_set& python) {
    return python.value();
  } catch (python_error& python) {
    python.restore();
    return raised_exception();
  } catch (const std::exception& other) {
    return py::module_::import("builtins").attr("RuntimeError")(other.what());
  } catch (...) {
    return py::module_::import("builtins").attr("RuntimeError")("an exception that is no std::exception");
  }
}

void rethrow_as_python(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& own) {
    const py::gil_scoped_acquire lock;
    if (!raise_for_signal()) raise(own_exception(own));
    throw py::error_already_set();
  } catch (python_error& raised) {
    name_class(raised);  // autograd raises it; other ranks read what() of it
  } catch (...) {
    // Autograd knows what to do with all others.
  }
}

void bind_errors(py::module_& module) {
  py::register_exception_translator([](std::exception_ptr error) {
    const WithinCpp within;
    try {
      if (error) std::rethrow_exception(error);
    } catch (const Error& own) {
      if (!raise_for_signal()) raise(own_exception(own));
    } catch (python_error& python) {
      python.restore();
    }
  });
  module.def(
      "watch_signals", [] { set_interrupt_check(&look_for_signals); },
      "Lets Ctrl-C (any signal whose handler raises) end waits of the calling thread, which must be the main one.");
  module.def(
      "_raise_for_tests",
      [](const std::string& kind) {
        if (kind == "PeerError") throw PeerError("a peer", {1, 2});
        if (kind == "TimeoutError") throw TimeoutError("too late", {3});
        if (kind == "InvalidArgument") throw InvalidArgument("wrong");
        throw InternalError(kind);
      },
      py::arg("kind"));
}

}  // namespace gradwire::python
