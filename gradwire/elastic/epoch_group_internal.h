// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The group of an epoch.
#pragma once

#include <memory>
#include <string>

#include "gradwire/elastic/elastic.h"
#include "gradwire/membership/records.h"
#include "gradwire/process_group/process_group.h"
#include "gradwire/store/store.h"

namespace gradwire::internal {

// Whether the members of the epoch run on several hosts.
bool crosses_hosts(const membership::Epoch& epoch);

// The part of the job's store where the members of an epoch make their group.
std::shared_ptr<Store> keys_of(const membership::Epoch& epoch, const std::shared_ptr<Store>& store);

// The group of an epoch, with the name `name`. Collective: all members of the epoch call it, with keys that are this
// group's alone.
std::shared_ptr<ProcessGroup> group_of(const membership::Epoch& epoch, int rank, const std::shared_ptr<Store>& keys,
                                       const ElasticOptions& options, const std::string& name);

}  // namespace gradwire::internal
