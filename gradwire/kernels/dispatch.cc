// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A table of instruction sets, best first; the first that fits is taken.
#include "gradwire/kernels/dispatch.h"

#include <algorithm>
#include <atomic>
#include <cctype>

#include "gradwire/base/environment.h"
#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/base/thread_local.h"
#include "gradwire/kernels/affine_internal.h"
#include "gradwire/kernels/dispatch_internal.h"
#include "gradwire/kernels/highway_internal.h"
#include "gradwire/kernels/matrix_internal.h"
#include "gradwire/kernels/quantize_internal.h"

namespace gradwire::kernels {
namespace {

constexpr const char* kVariable = "GRADWIRE_KERNELS";

std::atomic<const KernelSet*> g_selected{nullptr};  // null: the default, not looked up yet
GRADWIRE_STATIC_THREAD_LOCAL const char* last_run_of_thread = "";

std::string lower_case(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return lower;
}

KernelSet make_set(std::int64_t target) {
  KernelSet set{lower_case(hwy::TargetName(target)), find_reduce_float(target), find_reduce_half(target),
                find_reduce_integer(target),         find_cast(target),         find_copy(target),
                find_quantize_loops(target),         find_matrix_loops(target), find_affine_loops(target)};
  if (set.reduce_float == nullptr) set.reduce_float = &reduce_scalar;
  if (set.reduce_half == nullptr) set.reduce_half = &reduce_scalar;
  if (set.reduce_integer == nullptr) set.reduce_integer = &reduce_scalar;
  if (set.cast == nullptr) set.cast = &cast_scalar;
  if (set.copy == nullptr) set.copy = &copy_scalar;
  if (set.quantize == nullptr) set.quantize = &quantize_loops_scalar();
  if (set.matrix == nullptr) set.matrix = &matrix_loops_scalar();
  if (set.affine == nullptr) set.affine = &affine_loops_scalar();
  return set;
}

// What this processor can run, best first; computed once.
const std::vector<KernelSet>& sets() {
  static const std::vector<KernelSet> list = [] {
    std::vector<KernelSet> found;
    const std::int64_t runnable = hwy::SupportedTargets();
    for (const std::int64_t target : kHighwayTargets) {
      if ((runnable & target) != 0) found.push_back(make_set(target));
    }
    found.push_back({"scalar", &reduce_scalar, &reduce_scalar, &reduce_scalar, &cast_scalar, &copy_scalar,
                     &quantize_loops_scalar(), &matrix_loops_scalar(), &affine_loops_scalar()});
    return found;
  }();
  return list;
}

// Null when there is no such set here.
const KernelSet* find(std::string_view name) {
  const auto& list = sets();
  const auto match = std::find_if(list.begin(), list.end(), [&](const KernelSet& set) { return set.name == name; });
  return match == list.end() ? nullptr : &*match;
}

[[noreturn]] void refuse(std::string_view name, std::string_view origin) {
  throw InvalidArgument(concat("kernels '", name, "' (", origin, ") are unknown or beyond this processor; it can run ",
                               join(available(), ", ")));
}

// The default: what the environment names, else the best. Null when the environment names nothing that runs here.
const KernelSet* find_default() {
  const auto forced = environment(kVariable);
  return forced ? find(*forced) : &sets().front();
}

}  // namespace

std::string_view selected() {
  const KernelSet* set = g_selected.load(std::memory_order_acquire);
  if (set == nullptr) {
    set = find_default();
    if (set == nullptr) refuse(environment(kVariable).value_or(""), concat("the environment variable ", kVariable));
    g_selected.store(set, std::memory_order_release);
  }
  return set->name;
}

std::vector<std::string> available() {
  std::vector<std::string> names;
  for (const KernelSet& set : sets()) names.emplace_back(set.name);
  return names;
}

void select(std::string_view name) {
  if (name.empty()) {
    g_selected.store(nullptr, std::memory_order_release);
    return;
  }
  const KernelSet* set = find(name);
  if (set == nullptr) refuse(name, "asked for by select()");
  g_selected.store(set, std::memory_order_release);
}

const KernelSet& active() noexcept {
  const KernelSet* set = g_selected.load(std::memory_order_acquire);
  if (set != nullptr) return *set;
  set = find_default();
  // A variable that cannot be honoured is not remembered, so that selected() still reports it.
  if (set == nullptr) return sets().front();
  g_selected.store(set, std::memory_order_release);
  return *set;
}

void note_run(const char* compiled_for) noexcept { last_run_of_thread = compiled_for; }

std::string_view last_run() noexcept { return last_run_of_thread; }

}  // namespace gradwire::kernels
