// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Futures and values of either language as those of the other. The one source that includes libtorch's converters.
#include <ATen/core/jit_type.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include <algorithm>
#include <string>
#include <vector>

#include "binding.h"
#include "gradwire/base/strings.h"

namespace gradwire::python {
namespace {

using torch::jit::PythonFutureWrapper;

template <class T>
c10::IValue list_of(const std::vector<c10::IValue>& values) {
  c10::List<T> list;
  for (const c10::IValue& value : values) list.push_back(value.to<T>());
  return list;
}

c10::IValue value_of(const py::object& object);

c10::IValue value_of_sequence(const py::sequence& items) {
  std::vector<c10::IValue> values;
  for (const auto& item : items) values.push_back(value_of(py::reinterpret_borrow<py::object>(item)));
  const auto all = [&](auto is) { return std::all_of(values.begin(), values.end(), is); };
  if (all([](const c10::IValue& value) { return value.isTensor(); })) return list_of<at::Tensor>(values);
  if (all([](const c10::IValue& value) { return value.isInt(); })) return list_of<std::int64_t>(values);
  if (all([](const c10::IValue& value) { return value.isDouble(); })) return list_of<double>(values);
  if (all([](const c10::IValue& value) { return value.isString(); })) return list_of<std::string>(values);
  c10::impl::GenericList list(c10::AnyType::get());
  for (c10::IValue& value : values) list.push_back(std::move(value));
  return list;
}

// Tensors, numbers, booleans, strings and lists of those as such; any other object as it is.
c10::IValue value_of(const py::object& object) {
  if (object.is_none()) return {};
  if (THPVariable_Check(object.ptr())) return object.cast<at::Tensor>();
  if (PyBool_Check(object.ptr())) return object.cast<bool>();
  if (PyLong_Check(object.ptr())) return object.cast<std::int64_t>();
  if (PyFloat_Check(object.ptr())) return object.cast<double>();
  if (PyUnicode_Check(object.ptr())) return object.cast<std::string>();
  if (py::isinstance<py::list>(object) || py::isinstance<py::tuple>(object)) return value_of_sequence(object);
  return torch::jit::toIValue(object, c10::PyObjectType::get());
}

// `of`: Python's object for the future, if Python still has one.
c10::IValue without_python(const c10::ivalue::Future& done, const std::weak_ptr<PythonFutureWrapper>& of) {
  if (done.hasError()) std::rethrow_exception(done.exception_ptr());
  const c10::IValue& value = done.constValue();
  if (!value.isPyObject()) return value;
  return in_python([&] {
    const py::object object = torch::jit::toPyObject(value);
    // After Python's set_exception() the exception is the value, and this function raises it.
    const auto wrapper = of.lock();
    if (wrapper != nullptr && wrapper->unwrap_func) (*wrapper->unwrap_func)(object);
    return value_of(object);
  });
}

}  // namespace

py::object python_future(Future future) { return py::cast(std::make_shared<PythonFutureWrapper>(std::move(future))); }

Future future_from(py::handle object) {
  if (!py::isinstance<PythonFutureWrapper>(object)) {
    throw py::type_error(concat("a torch.futures.Future was expected, not a ",
                                py::type::handle_of(object).attr("__name__").cast<std::string>()));
  }
  const auto wrapper = object.cast<std::shared_ptr<PythonFutureWrapper>>();
  const Future future = wrapper->fut;
  if (future->elementType()->kind() != c10::TypeKind::PyObjectType) return future;
  if (future->completed() && future->hasError()) return future;
  // On a device then() keeps its streams in order.
  if (future->completed() && future->devices().empty()) {
    auto converted = c10::make_intrusive<c10::ivalue::Future>(c10::AnyType::get());
    converted->markCompleted(without_python(*future, wrapper));
    return converted;
  }
  return future->then([of = std::weak_ptr(wrapper)](c10::ivalue::Future& done) { return without_python(done, of); },
                      c10::AnyType::get());
}

py::dict dict_of(const HookState& state) {
  py::dict out;
  for (const auto& [key, value] : state) out[py::str(key)] = torch::jit::toPyObject(value);
  return out;
}

HookState hook_state_from(const py::dict& state) {
  HookState out;
  for (const auto& [key, value] : state) {
    out.emplace(key.cast<std::string>(), value_of(py::reinterpret_borrow<py::object>(value)));
  }
  return out;
}

}  // namespace gradwire::python
