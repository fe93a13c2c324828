// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The only file of this folder that is part of libgradwire_core.so.
#include "gradwire/backend/ucx/ucx_backend.h"

#include <pthread.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "gradwire/backend/plugin_internal.h"
#include "gradwire/backend/ucx/contexts_internal.h"
#include "gradwire/base/error.h"

namespace gradwire {
namespace {

constexpr plugin::Description kUcxPlugin{.backend = "ucx",
                                         .file = GRADWIRE_UCX_PLUGIN,
                                         .symbol = "gradwire_ucx_plugin",
                                         .engine = "UCX",
                                         .to_build = "libucx-dev",
                                         .to_run = "libucx0"};

// What UCX is to leave alone. Its libraries read these variables as they are loaded, and then install handlers of
// signals, write over the first instructions of mmap and others, and start a thread that serves a file system: nothing
// that is said to UCX later undoes that.
constexpr std::array<const char*, 4> kHandsOff{"UCX_ERROR_SIGNALS=", "UCX_DEBUG_SIGNO=0", "UCX_MEM_EVENTS=n",
                                               "UCX_VFS_ENABLE=n"};

bool is_set(const char* setting) {
  const std::string_view text(setting);
  return std::getenv(std::string(text.substr(0, text.find('='))).c_str()) != nullptr;
}

// The process's environment with kHandsOff in it, while it lives; variables that the user has set stay as they are.
//
// Not setenv(): other threads may read the environment at any time. They find one whole list or the other. The list
// stays in memory, as a thread may still be reading it afterwards.
class HandsOff {
 public:
  HandsOff() : before_(::environ) {
    auto* const list = new_list();
    for (char** entry = before_; entry != nullptr && *entry != nullptr; ++entry) list->push_back(*entry);
    for (const char* setting : kHandsOff) {
      if (!is_set(setting)) list->push_back(const_cast<char*>(setting));  // nobody writes to it
    }
    list->push_back(nullptr);
    ours_ = list->data();
    ::environ = ours_;
  }
  ~HandsOff() {
    if (::environ == ours_) ::environ = before_;  // else somebody has set a variable meanwhile
  }
  HandsOff(const HandsOff&) = delete;
  HandsOff& operator=(const HandsOff&) = delete;

 private:
  static std::vector<char*>* new_list() {
    static std::deque<std::vector<char*>> lists;  // one for each attempt to load UCX; load_once() lets one thread in
    return &lists.emplace_back();
  }
  char** const before_;
  char** ours_ = nullptr;
};

std::atomic<int> contexts{0};
std::atomic<bool> has_inherited{false};

constexpr const char* kForked =
    "backend ucx: this process was forked while its parent had a group over UCX, which UCX does not survive; fork "
    "before the parent makes the group or after it has let it go, start a new program, or use another backend";

const plugin::Entry& load_once() {
  static const plugin::Entry* const entry = [] {
    const HandsOff hands_off;
    return &plugin::load(kUcxPlugin);
  }();
  return *entry;
}

}  // namespace

namespace ucx {

void note_context() {
  static const int registered = ::pthread_atfork(nullptr, nullptr, [] {
    if (contexts.exchange(0) > 0) has_inherited = true;
  });
  static_cast<void>(registered);
  ++contexts;
}

void forget_context() noexcept { --contexts; }

bool has_inherited_contexts() noexcept { return has_inherited; }

}  // namespace ucx

std::unique_ptr<Backend> make_ucx_backend(const BackendOptions& options) {
  if (ucx::has_inherited_contexts()) throw UnsupportedError(kForked);
  return load_once().make(options);
}

bool ucx_is_built() noexcept { return plugin::is_built(kUcxPlugin); }

std::optional<std::string> why_no_ucx() {
  if (ucx::has_inherited_contexts()) return kForked;
  try {
    load_once();
    return std::nullopt;
  } catch (const UnsupportedError& error) {
    return error.what();
  }
}

}  // namespace gradwire
