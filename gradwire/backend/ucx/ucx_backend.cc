// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The only file of this folder that is part of libgradwire_core.so.
#include "gradwire/backend/ucx/ucx_backend.h"

#include <dlfcn.h>
#include <signal.h>

#include <array>
#include <string_view>

#include "gradwire/backend/plugin_internal.h"

namespace gradwire {
namespace {

constexpr plugin::Description kUcxPlugin{.backend = "ucx",
                                         .file = GRADWIRE_UCX_PLUGIN,
                                         .symbol = "gradwire_ucx_plugin",
                                         .engine = "UCX",
                                         .to_build = "libucx-dev",
                                         .to_run = "libucx0"};

// The handlers of all signals. UCX's libraries install handlers of their own as they are loaded, for signals that are
// the program's (SIGSEGV, SIGHUP, ...).
class SignalHandlers {
 public:
  SignalHandlers() {
    for (int number = 1; number < NSIG; ++number) {
      known_[at(number)] = ::sigaction(number, nullptr, &handlers_[at(number)]) == 0;
    }
  }
  // Puts back those that UCX has replaced since then, and no others: another thread may have set its own.
  void take_back_from_ucx() const {
    for (int number = 1; number < NSIG; ++number) {
      struct sigaction now {};
      if (!known_[at(number)] || ::sigaction(number, nullptr, &now) != 0 || !is_of_ucx(now)) continue;
      ::sigaction(number, &handlers_[at(number)], nullptr);
    }
  }

 private:
  static std::size_t at(int number) { return static_cast<std::size_t>(number); }
  static bool is_of_ucx(const struct sigaction& action) {
    const auto address = (action.sa_flags & SA_SIGINFO) != 0 ? reinterpret_cast<const void*>(action.sa_sigaction)
                                                             : reinterpret_cast<const void*>(action.sa_handler);
    Dl_info place{};
    return ::dladdr(address, &place) != 0 && place.dli_fname != nullptr &&
           std::string_view(place.dli_fname).find("libucs") != std::string_view::npos;
  }

  std::array<struct sigaction, NSIG> handlers_{};
  std::array<bool, NSIG> known_{};
};

const plugin::Entry& load_once() {
  static const plugin::Entry& entry = [&]() -> const plugin::Entry& {
    const SignalHandlers before;
    const plugin::Entry& loaded = plugin::load(kUcxPlugin);
    before.take_back_from_ucx();
    return loaded;
  }();
  return entry;
}

}  // namespace

std::unique_ptr<Backend> make_ucx_backend(const BackendOptions& options) { return load_once().make(options); }

}  // namespace gradwire
