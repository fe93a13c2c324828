// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A Memory whose state is vectors by parameter.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "gradwire/compress/memory.h"
#include "gradwire/compress/memory_internal.h"

namespace gradwire::compress {

// `Rule` has the arithmetic, and holds the vectors:
//   name(), works_by_value(), before(), after()   as those of Memory
//   kinds(rule)                                   static: references to the NamedVectors of the state, in a tuple
//   forget_step()                                 where it has one: the state is another one from now on
template <class Rule>
class VectorMemory final : public Memory {
 public:
  template <class... Arguments>
  explicit VectorMemory(Arguments&&... arguments) : rule_(std::forward<Arguments>(arguments)...) {}

  std::string name() const override { return rule_.name(); }
  bool remembers() const noexcept override { return true; }
  bool works_by_value() const noexcept override { return rule_.works_by_value(); }

  void before(std::span<const Segment> segments, int world, std::span<const float> gradient,
              std::span<float> values) override {
    rule_.before(segments, world, gradient, values);
  }
  void after(std::span<const Segment> segments, std::span<const float> values, std::span<const float> delivered,
             std::span<float> mean) override {
    rule_.after(segments, values, delivered, mean);
  }

  MemoryState save() const override {
    MemoryState state;
    std::apply([&](const auto&... kinds) { (kinds.save(state), ...); }, Rule::kinds(rule_));
    return state;
  }
  void load(const MemoryState& state) override {
    std::apply([&](auto&... kinds) { load_vectors(state, name(), {&kinds...}); }, Rule::kinds(rule_));
    if constexpr (requires { rule_.forget_step(); }) rule_.forget_step();
  }
  void clear() override { load({}); }
  void reorder(std::string_view parameter, std::span<const std::size_t> from) override {
    for_each([&](NamedVectors& kind) { kind.reorder(parameter, from); });
  }
  void keep() override {
    for_each([](NamedVectors& kind) { kind.keep(); });
  }
  void revert() override {
    for_each([](NamedVectors& kind) { kind.revert(); });
  }
  void hold(std::string_view parameter) override {
    for_each([&](NamedVectors& kind) { kind.hold(parameter); });
  }
  void restore(std::string_view parameter) override {
    for_each([&](NamedVectors& kind) { kind.restore(parameter); });
  }
  void release() override {
    for_each([](NamedVectors& kind) { kind.release(); });
  }

 private:
  template <class Body>
  void for_each(const Body& body) {
    std::apply([&](auto&... kinds) { (body(kinds), ...); }, Rule::kinds(rule_));
  }

  Rule rule_;
};

}  // namespace gradwire::compress
