// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The keys that the launchers of an elastic job keep in the job's part of its store. docs/format/membership.md
// specifies them.
#pragma once

namespace gradwire::launch {

// gradwire's version on the host that serves the store. The last key that this host sets as it begins.
inline constexpr const char* kVersionKey = "job/version";
inline constexpr const char* kIdKey = "job/id";               // the value of GRADWIRE_JOB_ID on all hosts
inline constexpr const char* kRunKey = "job/run";             // another text each time that the job is started
inline constexpr const char* kNextRankKey = "job/next_rank";  // the number that the next rank of a host gets that joins

}  // namespace gradwire::launch
