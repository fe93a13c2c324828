// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What this build of gradwire has, and what of it works on this machine: the text of `gradwire-run --info` and
// `python -m gradwire`.
#pragma once

#include <string>
#include <vector>

namespace gradwire {

// "0.1.0"
const char* version() noexcept;

// What is known of one backend.
struct BackendInfo {
  std::string name;        // as backend_names() and builtin_backends() have it: "shm"
  bool is_usable = false;  // whether this process can make it, as far as this machine shows
  // Where it is not usable: why, and what to install. Where it is: what was tried, or empty.
  std::string remark;
};

// Returns the backends that this gradwire knows, by name, also auto and those that need torch: whether each was built,
// and whether one rank of it can be made on this machine now. Makes such a rank, of the backends that need no launcher
// and no torch, so it takes some tenths of a second, opens sockets of the loopback interface and loads the libraries of
// UCX and MPI. Throws nothing but std::bad_alloc. Thread-safe.
std::vector<BackendInfo> backend_info();

// Returns version, compiler, options of the build, backends and kernels as lines of text.
std::string installation_info();

}  // namespace gradwire
