// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/observe/caller_sites_internal.h"

#include <dlfcn.h>
#include <link.h>

#include <exception>
#include <filesystem>
#include <string>
#include <system_error>

#include "gradwire/observe/flight_text_internal.h"
#include "gradwire/observe/readable_symbol_internal.h"

namespace gradwire::observe {
namespace {

// Keys of lines have this bit; addresses of a program do not.
constexpr std::uint64_t kLineBit = std::uint64_t{1} << 63;

std::size_t first_entry(std::uint64_t key, std::size_t entries) noexcept {
  return static_cast<std::size_t>((key * 0x9e3779b97f4a7c15ULL) >> 40) % entries;
}

// The program's own name may be one that was found through PATH, or be relative to a folder that the process has left.
std::string path_of(const link_map& module, const char* name) {
  std::error_code error;
  if (module.l_name != nullptr && *module.l_name != '\0') return name;
  const std::string program = std::filesystem::read_symlink("/proc/self/exe", error).string();
  return error ? name : program;
}

// Writes the path of a module into the site, or into the file's room for long ones, where that has room. Returns the
// state of the site.
std::uint64_t set_path(format::File& file, format::Site& site, const std::string& path) {
  set_text(site.text, keep_end(path, sizeof(site.text) - 1));
  if (path.size() < sizeof(site.text) || path.size() >= sizeof(file.long_paths.front())) return 1;
  for (std::size_t number = 0; number < file.long_paths.size(); ++number) {
    auto& place = file.long_paths[number];
    const std::string known = get_text(place);
    if (known.empty()) set_text(place, path);
    if (known.empty() || known == path) return number + 2;
  }
  return 1;
}

// Returns the state of the site.
std::uint64_t describe_address(format::File& file, format::Site& site, const void* return_address) {
  Dl_info info{};
  const auto address = reinterpret_cast<std::uint64_t>(return_address);
  void* extra = nullptr;
  if (::dladdr1(return_address, &info, &extra, RTLD_DL_LINKMAP) == 0 || info.dli_fname == nullptr || extra == nullptr) {
    site.offset.store(address, std::memory_order_relaxed);
    set_text(site.text, "?");
    return 1;
  }
  const auto& module = *static_cast<const link_map*>(extra);
  // As in the module's own tables: a program that is not position-independent begins at another address than 0 there.
  site.offset.store(address - module.l_addr, std::memory_order_relaxed);
  if (info.dli_sname != nullptr)
    set_text(site.function, keep_end(readable_symbol(info.dli_sname), sizeof(site.function) - 1));
  return set_path(file, site, path_of(module, info.dli_fname));
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
  std::uint64_t state = 0;
  try {
    state = fill(site);
  } catch (const std::exception&) {
    return 0;
  }
  site.state.store(state, std::memory_order_release);
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
  return learn(key, [&](format::Site& site) { return describe_address(file_, site, return_address); });
}

std::uint32_t CallerSites::of_line(std::uint64_t key, CallerLine::Describe describe, const void* context) noexcept {
  key |= kLineBit;
  if (const std::uint32_t site = known(key)) return site;
  return learn(key, [&](format::Site& site) {
    set_text(site.text, describe(context));
    return std::uint64_t{1};
  });
}

}  // namespace gradwire::observe
