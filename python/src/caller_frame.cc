// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "caller_frame.h"

#include <frameobject.h>

#include <algorithm>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "gradwire/base/strings.h"
#include "gradwire/observe/interpreter_line_internal.h"

namespace gradwire::python {
namespace {

template <class T>
py::object taken(T* object) {
  return py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(object));
}

PyFrameObject* frame_in(const py::object& object) { return reinterpret_cast<PyFrameObject*>(object.ptr()); }

// A place in a program. The strings are Python's, which the code object holds.
struct Place {
  std::string_view file;
  std::string_view function;
  int line = 0;
};

// The folders of the packages, with the last slash. Changes under the lock only.
std::vector<std::string>& packages() {
  static std::vector<std::string> folders;
  return folders;
}

bool is_ours(std::string_view file) {
  const auto& folders = packages();
  return std::any_of(folders.begin(), folders.end(), [file](const auto& folder) { return file.starts_with(folder); });
}

std::string_view text_of(const py::object& text) {
  Py_ssize_t size = 0;
  const char* const bytes = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
  if (bytes == nullptr) PyErr_Clear();
  return bytes == nullptr ? std::string_view() : std::string_view(bytes, static_cast<std::size_t>(size));
}

std::string describe(const void* context) {
  const auto& place = *static_cast<const Place*>(context);
  return concat(place.file.substr(place.file.rfind('/') + 1), ":", place.line, " (", place.function, ")");
}

// For calls through torch, which has let go of the lock.
std::uint32_t line_of_this_thread() noexcept {
  // A thread that Python does not know has no frame, and would be made known to Python by taking the lock.
  if (PyGILState_GetThisThreadState() == nullptr || !may_take_lock()) return 0;
  try {
    const py::gil_scoped_acquire lock;
    const CallerFrame caller;
    return observe::caller_line();
  } catch (const std::exception&) {
    return 0;  // the record has the address then
  }
}

}  // namespace

void follow_callers() {
  for (const char* name : {"gradwire", "torch"}) {
    const auto file = py::module_::import(name).attr("__file__").cast<std::string>();
    packages().push_back(file.substr(0, file.rfind('/') + 1));
  }
  observe::set_interpreter_line(&line_of_this_thread);
}

CallerFrame::CallerFrame() {
  py::object frame = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(PyEval_GetFrame()));
  while (frame) {
    const py::object code = taken(PyFrame_GetCode(frame_in(frame)));
    const auto* const names = reinterpret_cast<const PyCodeObject*>(code.ptr());
    const auto file = py::reinterpret_borrow<py::object>(names->co_filename);
    const auto function = py::reinterpret_borrow<py::object>(names->co_name);
    const Place place{text_of(file), text_of(function), PyFrame_GetLineNumber(frame_in(frame))};
    if (!is_ours(place.file)) {
      // Python keeps the hash of a string with the string.
      const auto key = static_cast<std::uint64_t>(py::hash(file)) * 1000003U + static_cast<std::uint64_t>(place.line);
      line_.emplace(key, describe, &place);
      return;
    }
    frame = taken(PyFrame_GetBack(frame_in(frame)));
  }
}

}  // namespace gradwire::python
