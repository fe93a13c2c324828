// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Finds the tensors in the arguments and in the result of a module's forward(), whatever their types.
//
// DDP finds tensors in these types, nested at will: at::Tensor; std::optional, pair, tuple, array, vector, list, deque,
// map and unordered_map (in the values), shared_ptr and unique_ptr. For a type of your own, write a function
// visit_tensors() that argument-dependent lookup finds:
//
//   struct Detections { at::Tensor boxes; std::vector<at::Tensor> masks; int count; };
//   template <class Visit> void visit_tensors(Detections& d, Visit&& visit) { visit(d.boxes); visit(d.masks); }
//
// `visit` takes a value of any of the types above. DDP finds no tensors in other types (an int, a string, a class
// without visit_tensors()); that is no error.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

namespace gradwire::internal {

template <class T>
struct IsSequence : std::false_type {};
template <class T, class A>
struct IsSequence<std::vector<T, A>> : std::true_type {};
template <class T, class A>
struct IsSequence<std::list<T, A>> : std::true_type {};
template <class T, class A>
struct IsSequence<std::deque<T, A>> : std::true_type {};
template <class T, std::size_t N>
struct IsSequence<std::array<T, N>> : std::true_type {};

template <class T>
struct IsMapping : std::false_type {};
template <class K, class V, class C, class A>
struct IsMapping<std::map<K, V, C, A>> : std::true_type {};
template <class K, class V, class H, class E, class A>
struct IsMapping<std::unordered_map<K, V, H, E, A>> : std::true_type {};

template <class T>
struct IsTuple : std::false_type {};
template <class... T>
struct IsTuple<std::tuple<T...>> : std::true_type {};
template <class A, class B>
struct IsTuple<std::pair<A, B>> : std::true_type {};

template <class T>
struct IsHolder : std::false_type {};
template <class T>
struct IsHolder<std::optional<T>> : std::true_type {};
template <class T>
struct IsHolder<std::shared_ptr<T>> : std::bool_constant<!std::is_void_v<T>> {};
template <class T, class D>
struct IsHolder<std::unique_ptr<T, D>> : std::true_type {};

// Calls action(at::Tensor&) for every tensor in a value. `action` must outlive the visitor.
template <class Action>
class TensorVisitor {
 public:
  explicit TensorVisitor(const Action& action) : action_(action) {}

  template <class T>
  void operator()(T& value) const {
    using Plain = std::remove_const_t<T>;
    if constexpr (std::is_const_v<T>) {
      // visit_tensors() takes its value by a reference that is not const. DDP changes no value that it got as const.
      (*this)(const_cast<Plain&>(value));
    } else if constexpr (std::is_base_of_v<at::Tensor, Plain>) {
      action_(static_cast<at::Tensor&>(value));
    } else if constexpr (IsHolder<Plain>::value) {
      if (value) (*this)(*value);
    } else if constexpr (IsTuple<Plain>::value) {
      std::apply([this](auto&... elements) { ((*this)(elements), ...); }, value);
    } else if constexpr (std::is_same_v<Plain, std::vector<bool>>) {
    } else if constexpr (IsSequence<Plain>::value) {
      for (auto& element : value) (*this)(element);
    } else if constexpr (IsMapping<Plain>::value) {
      for (auto& [key, element] : value) (*this)(element);
    } else if constexpr (requires { visit_tensors(value, *this); }) {
      visit_tensors(value, *this);
    }
  }

 private:
  const Action& action_;
};

// The type that holds an argument of forward() while its tensors move to another device or dtype: a copy when the
// argument holds tensors by value and can be copied, else the argument itself.
template <class T>
inline constexpr bool kHoldsTensors = std::is_base_of_v<at::Tensor, T> || IsSequence<T>::value || IsMapping<T>::value ||
                                      IsTuple<T>::value ||
                                      requires(T& value, TensorVisitor<void (*)(at::Tensor&)>& visit) {
  visit_tensors(value, visit);
};
template <class T>
inline constexpr bool kHoldsTensors<std::optional<T>> = kHoldsTensors<T>;
template <class T>
inline constexpr bool kIsMoved =
    kHoldsTensors<std::remove_cvref_t<T>>&& std::is_copy_constructible_v<std::remove_cvref_t<T>>;
template <class T>
using MovedArgument = std::conditional_t<kIsMoved<T>, std::remove_cvref_t<T>, T&&>;

// What DDP returns of a forward() that returns T: a value that holds tensors, where T is a reference to one.
template <class T>
using ForwardResult = std::conditional_t<std::is_reference_v<T> && kIsMoved<T>, std::remove_cvref_t<T>, T>;

template <class T, class Visit>
void visit_moved(T& argument, const Visit& visit) {
  if constexpr (kIsMoved<T>) visit(argument);
}

// Returns every tensor in `value`, in the order in which `value` holds the tensors.
template <class T>
std::vector<at::Tensor> tensors_in(const T& value) {
  std::vector<at::Tensor> found;
  const auto action = [&found](at::Tensor& tensor) { found.push_back(tensor); };
  const TensorVisitor visit(action);
  visit(value);
  return found;
}

}  // namespace gradwire::internal
