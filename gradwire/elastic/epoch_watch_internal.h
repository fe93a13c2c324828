// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The coordinator's word that a member of the present epoch is gone, for members that wait for it in a collective or in
// the rendezvous: the process of a member on another host cannot be seen from here. In the rendezvous also the loss of
// the job's store, with the addresses of ranks that others wait for.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gradwire/base/mutex.h"
#include "gradwire/base/process.h"
#include "gradwire/elastic/elastic_group.h"
#include "gradwire/elastic/epoch_store_internal.h"
#include "gradwire/store/store.h"

namespace gradwire::internal {

// Owns a thread. One thread calls the methods.
class EpochWatch final {
 public:
  // Shares the ownership of `job`, the job's store.
  explicit EpochWatch(std::shared_ptr<Store> job);
  // Waits up to a quarter of a second for the thread, and longer when the store does not answer.
  ~EpochWatch();
  EpochWatch(const EpochWatch&) = delete;
  EpochWatch& operator=(const EpochWatch&) = delete;

  // From here until end(), the loss of one of `members` (by rank) of `epoch` ends the calls on the store that is
  // returned: `keys`, in which the members make their group and its duplicates. So does, until attach(), another store
  // than `job_store` (membership::name_of_job_store()) behind the job.
  std::shared_ptr<Store> begin(std::int64_t epoch, std::vector<std::int64_t> members, std::shared_ptr<Store> keys,
                               std::string job_store);
  // The members have met in `made`, and go on to make its duplicates. Until attach(), a loss aborts `made`, also one
  // that came before.
  void go_on_with(std::shared_ptr<ProcessGroup> made);
  // The groups are made. From here until end(), a loss aborts `group`, also one that came before.
  void attach(std::shared_ptr<ElasticGroup> group);
  // The epoch is over for this member.
  void end();

 private:
  void run();
  // One look into the store, without the mutex.
  void look(std::int64_t epoch, bool meets, const std::string& job_store);
  void on_lost(std::int64_t epoch, const std::string& member);
  void on_other_store(std::int64_t epoch);
  void end_calls() GRADWIRE_REQUIRES(mutex_);

  const std::shared_ptr<Store> job_;
  Mutex mutex_;
  ConditionVariable changed_;
  bool stop_ GRADWIRE_GUARDED_BY(mutex_) = false;
  std::int64_t epoch_ GRADWIRE_GUARDED_BY(mutex_) = 0;  // 0: none
  std::vector<std::int64_t> members_ GRADWIRE_GUARDED_BY(mutex_);
  std::string job_store_ GRADWIRE_GUARDED_BY(mutex_);
  std::shared_ptr<EpochLoss> loss_ GRADWIRE_GUARDED_BY(mutex_);
  std::shared_ptr<ProcessGroup> made_ GRADWIRE_GUARDED_BY(mutex_);  // until there is group_
  std::shared_ptr<ElasticGroup> group_ GRADWIRE_GUARDED_BY(mutex_);
  std::string lost_ GRADWIRE_GUARDED_BY(mutex_);  // why the present epoch has ended; empty: it has not
  Thread thread_;                                 // the last: it uses the others until it is joined
};

}  // namespace gradwire::internal
