// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// What the rendezvous of every backend has in common: ranks say who they are, wait for each other's keys, and hear of
// the first failure with its kind and the ranks at fault, whatever they wait for.
//
// Any thread may call these functions; each blocks as long as the store does. All but announce_failure() throw
// StoreError when the store fails.
#pragma once

#include <algorithm>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gradwire/base/deadline.h"
#include "gradwire/store/store.h"

namespace gradwire::rendezvous {

// How long a rank waits between two looks whether the awaited ranks live. Short at first, when the ranks of an elastic
// job meet again and one more may die on the way; then longer and longer, because each look of each rank asks the
// store.
class LookPause {
 public:
  Milliseconds next() noexcept {
    const Milliseconds pause = pause_;
    pause_ = std::min(2 * pause_, Milliseconds(250));
    return pause;
  }

 private:
  Milliseconds pause_{15};
};

// The same for what the user calls the backend, before anybody knows which one that means. Each meets in its own way,
// and would wait for the others. The name is claimed in the first of `places`. Throws MismatchError where another rank,
// or a group that met there before, has named another one, and announces that in every one of `places`, where ranks of
// that backend may wait. `what`: who asks, for the error: "Job".
void claim_backend(const std::vector<std::shared_ptr<Store>>& places, std::string_view what, int rank,
                   const std::string& backend);

// Takes the number `rank` of `size` ranks that meet in this store over `backend`, and registers the rank. Throws
// MismatchError where another rank, or a group that met in this store before, has the number, another world size or
// another backend: the ranks would wait for ever for ranks that never come.
void claim_rank(Store& store, std::string_view backend, int rank, int size);

// Writes which process `rank` is, so that the others see its death while they wait for it.
void register_rank(Store& store, int rank);
// The same in several stores at once: `places` are prefixes below `store`, "" for `store` itself. For the stores where
// the rank is to meet the others next: before it says anywhere that it comes, so that whoever has heard that also sees
// its death.
void register_rank_at(Store& store, int rank, std::span<const std::string> places);
// The same for ranks 0, 1, ... at once, which have said elsewhere that they are `processes` (process_identity(); empty:
// not known). So a rank that dies on its way to this rendezvous is not waited for.
void register_processes(Store& store, std::span<const std::string> processes);

// Which process `rank` is, as process_identity() says it; empty when it has not said so yet.
std::string process_of(Store& store, int rank);

// The same of ranks 0, 1, ... `size` - 1.
std::vector<std::string> processes_of(Store& store, int size);

// Those of `ranks` whose process said who it is and has certainly ended. Processes of other hosts count as alive.
std::vector<int> dead_ranks(Store& store, std::span<const int> ranks);

// Throws the failure that was announced, if there is one: a rank that hears of a failure ends, too. Else PeerError that
// names `dead`, with their processes: "rank 2 (process 4711) ended before all ranks were there".
[[noreturn]] void throw_dead(Store& store, const std::vector<int>& dead);

// A failure as text for other ranks. TimeoutError, PeerError, MismatchError and ResourceError keep their kind and their
// ranks there; an UnreachableError becomes a PeerError with its ranks, and any other failure of `rank` one that names
// `rank`.
std::string encode_failure(int rank, const std::exception& error);

// Throws what encode_failure() wrote. Text that makes no sense is an InternalError.
[[noreturn]] void throw_failure(const std::string& record);

// Whether the failure that was announced, if there is one, is an UnreachableError on the rank that announced it.
bool someone_is_unreachable(Store& store);

// Tells all ranks that use this store that the rendezvous failed on `rank`, and why. The first failure stays. Never
// throws: where the store is gone too the others have their deadlines.
void announce_failure(Store& store, int rank, const std::exception& error) noexcept;
// The same for an exception that was kept. One that is no std::exception is not announced.
void announce_failure(Store& store, int rank, const std::exception_ptr& error) noexcept;

// Throws the failure that was announced, if there is one.
void throw_if_failed(Store& store);

// Waits for `keys`, of which rank `ranks[i]` is to set `keys[i]`. Returns the ranks whose keys are not there by the
// deadline, in the order of `ranks`; empty: all keys are there. While keys are missing, throws the failure that was
// announced; PeerError that names the ranks that have died without setting their keys; AbortedError when this thread is
// interrupted. Costs one call of the store where the keys are there soon.
std::vector<int> await_keys(Store& store, const std::vector<std::string>& keys, std::span<const int> ranks,
                            Deadline deadline);

// The same for one key, and returns its value. Throws TimeoutError that names `awaited` when the deadline has passed.
std::string await_key(Store& store, const std::string& key, int awaited, Deadline deadline);

}  // namespace gradwire::rendezvous
