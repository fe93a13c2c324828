// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Finds the tensors in what a module's forward() takes and returns, whatever its type.
//
// Looked into: at::Tensor; std::optional, pair, tuple, array, vector, list, deque, map, unordered_map (values),
// shared_ptr and unique_ptr of such, nested at will. A type of your own takes part through a function that
// argument-dependent lookup finds next to it:
//
//   struct Detections { at::Tensor boxes; std::vector<at::Tensor> masks; int count; };
//   template <class Visit> void visit_tensors(Detections& d, Visit&& visit) { visit(d.boxes); visit(d.masks); }
//
// `visit` takes anything that can be looked into. What is none of these (an int, a string) holds no tensors as far as
// DDP can see; that is no error.
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

// Calls action(at::Tensor&) for every tensor in a value.
template <class Action>
class TensorVisitor {
 public:
  explicit TensorVisitor(const Action& action) : action_(action) {}

  template <class T>
  void operator()(T& value) const {
    using Plain = std::remove_const_t<T>;
    if constexpr (std::is_const_v<T>) {
      // Visitors of users' types take their value by reference; DDP changes nothing it reached through a const one.
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

// How an argument of forward() is kept while its tensors move to another device: copied when it holds some by value,
// else as it came.
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

template <class T, class Visit>
void visit_moved(T& argument, const Visit& visit) {
  if constexpr (kIsMoved<T>) visit(argument);
}

// Every tensor in `value`, in order.
template <class T>
std::vector<at::Tensor> tensors_in(const T& value) {
  std::vector<at::Tensor> found;
  const auto action = [&found](at::Tensor& tensor) { found.push_back(tensor); };
  const TensorVisitor visit(action);
  visit(value);
  return found;
}

}  // namespace gradwire::internal
