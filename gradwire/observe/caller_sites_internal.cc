// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/observe/caller_sites_internal.h"

#include <dlfcn.h>

#include <exception>
#include <string>

#include "gradwire/observe/flight_text_internal.h"
#include "gradwire/observe/readable_symbol_internal.h"

namespace gradwire::observe {
namespace {

// Keys of lines have this bit; addresses of a program do not.
constexpr std::uint64_t kLineBit = std::uint64_t{1} << 63;

std::size_t first_entry(std::uint64_t key, std::size_t entries) noexcept {
  return static_cast<std::size_t>((key * 0x9e3779b97f4a7c15ULL) >> 40) % entries;
}

void describe_address(const void* return_address, format::Site& site) {
  Dl_info info{};
  const auto address = reinterpret_cast<std::uint64_t>(return_address);
  if (::dladdr(return_address, &info) == 0 || info.dli_fname == nullptr) {
    site.offset.store(address, std::memory_order_relaxed);
    return set_text(site.text, "?");
  }
  site.offset.store(address - reinterpret_cast<std::uint64_t>(info.dli_fbase), std::memory_order_relaxed);
  set_text(site.text, info.dli_fname);
  if (info.dli_sname == nullptr) return;
  set_text(site.function, keep_end(readable_symbol(info.dli_sname), sizeof(site.function) - 1));
}

}  // namespace

std::uint32_t CallerSites::known(std::uint64_t key) const noexcept {
  std::size_t at = first_entry(key, kEntries);
  for (std::size_t tries = 0; tries < kEntries; ++tries, at = (at + 1) % kEntries) {
    const std::uint64_t found = entries_[at].key.load(std::memory_order_acquire);
    if (found == key) return entries_[at].site.load(std::memory_order_relaxed);
    if (found == 0) return 0;
  }
  return 0;
}

template <class Fill>
std::uint32_t CallerSites::learn(std::uint64_t key, const Fill& fill) noexcept {
  MutexLock lock(mutex_);
  if (const std::uint32_t site = known(key)) return site;
  const std::uint64_t index = file_.sites_used.load(std::memory_order_relaxed);
  if (index >= format::kSites) return 0;
  format::Site& site = file_.sites[index];
  try {
    fill(site);
  } catch (const std::exception&) {
    return 0;
  }
  site.state.store(1, std::memory_order_release);
  file_.sites_used.store(index + 1, std::memory_order_relaxed);
  std::size_t at = first_entry(key, kEntries);
  while (entries_[at].key.load(std::memory_order_relaxed) != 0) at = (at + 1) % kEntries;
  entries_[at].site.store(static_cast<std::uint32_t>(index + 1), std::memory_order_relaxed);
  entries_[at].key.store(key, std::memory_order_release);
  return static_cast<std::uint32_t>(index + 1);
}

std::uint32_t CallerSites::of_address(const void* return_address) noexcept {
  const auto key = reinterpret_cast<std::uint64_t>(return_address) & ~kLineBit;
  if (key == 0) return 0;
  if (const std::uint32_t site = known(key)) return site;
  return learn(key, [&](format::Site& site) { describe_address(return_address, site); });
}

std::uint32_t CallerSites::of_line(std::uint64_t key, CallerLine::Describe describe, const void* context) noexcept {
  key |= kLineBit;
  if (const std::uint32_t site = known(key)) return site;
  return learn(key, [&](format::Site& site) { set_text(site.text, describe(context)); });
}

}  // namespace gradwire::observe
