// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The one file that includes Gloo's headers. They are Debian's, of another version than the Gloo inside libtorch, so
// nothing of Gloo's may be made, or called inline, here: everything below is a function of libtorch's over pointers.
// scripts/check_gloo_symbols.py looks for what would break that.
#ifndef USE_C10D_GLOO
#define USE_C10D_GLOO
#endif
#include <cstdlib>
#include <sstream>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "gradwire/base/sigpipe.h"
#include "gradwire/process_group/c10d/gloo_internal.h"

namespace gradwire::internal {

bool gloo_is_built() noexcept { return true; }

c10::intrusive_ptr<c10d::Backend> make_gloo(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                            Milliseconds timeout) {
  using Gloo = c10d::ProcessGroupGloo;
  // Gloo writes to its connections on threads that start here.
  const NoSigpipe quiet;
  auto options = Gloo::Options::create(timeout);
  const char* interfaces = std::getenv("GLOO_SOCKET_IFNAME");
  std::istringstream names(interfaces == nullptr ? "" : interfaces);
  // Never lazily: a connection made in the midst of calls on several groups can wait for a rank that waits for this
  // one.
  for (std::string name; std::getline(names, name, ',');)
    options->devices.push_back(Gloo::createDeviceForInterface(name, /*lazyInit=*/false));
  if (options->devices.empty()) options->devices.push_back(Gloo::createDefaultDevice(/*lazyInit=*/false));
  // One thread: calls run in the order in which they were made, as our groups promise. Overlap comes from duplicates.
  options->threads = 1;
  return c10::make_intrusive<Gloo>(store, rank, size, std::move(options));
}

}  // namespace gradwire::internal
