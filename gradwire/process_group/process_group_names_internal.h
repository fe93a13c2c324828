// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The part of a ProcessGroup that changes.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "gradwire/base/deadline.h"
#include "gradwire/base/mutex.h"
#include "gradwire/process_group/group_record_internal.h"
#include "gradwire/process_group/process_group.h"

namespace gradwire {

struct ProcessGroup::Names {
  Mutex mutex;
  std::string name GRADWIRE_GUARDED_BY(mutex);
  std::string desc GRADWIRE_GUARDED_BY(mutex);
  std::uint32_t barriers GRADWIRE_GUARDED_BY(mutex) = 0;
  std::atomic<Milliseconds> timeout{kDefaultTimeout};
  std::atomic<std::uint64_t> payload{0};
  internal::GroupRecord record;
};

}  // namespace gradwire
