// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Groups by name, for tests above the line. A name is a backend's, or "round_trip": a group of the backend "threads"
// that was converted to a c10d backend and back to a group, so that every call goes through both adapters.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/backend/ucx/ucx_backend.h"
#include "gradwire/process_group/c10d/from_c10d.h"
#include "gradwire/process_group/c10d/gloo_internal.h"
#include "gradwire/process_group/c10d/to_c10d.h"
#include "gradwire/process_group/init.h"
#include "gradwire/store/prefix_store.h"

namespace gradwire::test_support {

// The backends that cross hosts, as far as this build has them.
inline std::vector<std::string> network_backends() {
  std::vector<std::string> names;
  if (gradwire::internal::gloo_is_built()) names.insert(names.end(), {"gloo", "hybrid/gloo"});
  if (ucx_is_built()) names.insert(names.end(), {"ucx", "hybrid/ucx"});
  return names;
}

// The backends whose ranks are processes, as far as this build has them.
inline std::vector<std::string> process_backends() {
  std::vector<std::string> names{"shm"};
  if (gradwire::internal::gloo_is_built()) names.emplace_back("gloo");
  if (ucx_is_built()) names.insert(names.end(), {"ucx", "hybrid/ucx"});
  return names;
}

// All names: for tests of process groups.
inline std::vector<std::string> named_groups() {
  std::vector<std::string> names = process_backends();
  names.insert(names.end(), {"threads", "round_trip"});
  return names;
}

// A name as a part of a test's name.
inline std::string name_case(const ::testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '/', '_');
  return name;
}

// The backend that run_ranks() needs for a test of `name`.
inline std::string engine_of(const std::string& name) { return name == "round_trip" ? "threads" : name; }

inline std::shared_ptr<ProcessGroup> make_named_group(const std::string& name, const std::shared_ptr<Store>& store,
                                                      int rank, int size, Milliseconds timeout = kDefaultTimeout) {
  // The ranks of a hybrid group are processes, so that each has an environment of its own: two hosts.
  if (name.starts_with("hybrid")) ::setenv("GRADWIRE_HOST", rank % 2 == 0 ? "even" : "odd", 1);
  auto group = make_process_group(engine_of(name), store, rank, size, timeout);
  if (name != "round_trip") return group;
  FromC10dOptions options;
  options.store = std::make_shared<PrefixStore>("round_trip", store);
  options.unwrap = false;
  auto around = from_c10d(to_c10d(std::move(group)), options);
  around->set_timeout(timeout);
  return around;
}

}  // namespace gradwire::test_support
