// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/elastic/epoch_watch_internal.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <utility>

#include "gradwire/base/deadline.h"
#include "gradwire/base/strings.h"
#include "gradwire/membership/job_store.h"
#include "gradwire/membership/records.h"
#include "gradwire/membership/stored_values.h"

namespace gradwire::internal {
namespace {

constexpr Milliseconds kLook{200};

}  // namespace

EpochWatch::EpochWatch(std::shared_ptr<Store> job)
    : job_(std::move(job)), thread_("elastic-epoch", [this] { run(); }) {}

EpochWatch::~EpochWatch() {
  MutexLock lock(mutex_);
  stop_ = true;
  lock.unlock();
  changed_.notify_all();
  thread_.join();
}

std::shared_ptr<Store> EpochWatch::begin(std::int64_t epoch, std::vector<std::int64_t> members,
                                         std::shared_ptr<Store> keys, std::string job_store) {
  const auto loss = std::make_shared<EpochLoss>();
  MutexLock lock(mutex_);
  epoch_ = epoch;
  members_ = std::move(members);
  job_store_ = std::move(job_store);
  loss_ = loss;
  lost_.clear();
  lock.unlock();
  changed_.notify_all();
  return std::make_shared<EpochStore>(std::move(keys), loss);
}

void EpochWatch::go_on_with(std::shared_ptr<ProcessGroup> made) {
  const MutexLock lock(mutex_);
  made_ = std::move(made);
  if (!lost_.empty()) end_calls();
}

void EpochWatch::attach(std::shared_ptr<ElasticGroup> group) {
  const MutexLock lock(mutex_);
  group_ = std::move(group);
  made_.reset();
  if (!lost_.empty()) end_calls();
}

void EpochWatch::end_calls() {
  if (made_ != nullptr) made_->abort(lost_);
  if (group_ != nullptr) group_->abort(lost_);
}

void EpochWatch::end() {
  const MutexLock lock(mutex_);
  epoch_ = 0;
  made_.reset();
  group_.reset();
  loss_.reset();
}

void EpochWatch::run() {
  MutexLock lock(mutex_);
  while (!stop_) {
    if (epoch_ == 0 || !lost_.empty()) {
      changed_.wait(lock);
      continue;
    }
    const std::int64_t epoch = epoch_;
    const bool meets = group_ == nullptr;
    const std::string job_store = job_store_;
    lock.unlock();
    bool failed = false;
    try {
      look(epoch, meets, job_store);
    } catch (const std::exception&) {
      // The next look may succeed. When the store is gone for good, the member finds that out by itself, at the latest
      // before its next step.
      failed = true;
    }
    lock.lock();
    if (failed && !stop_) changed_.wait_for(lock, kLook);
  }
}

void EpochWatch::look(std::int64_t epoch, bool meets, const std::string& job_store) {
  if (const auto lost = membership::value_of(*job_, membership::lost_key(epoch), kLook)) return on_lost(epoch, *lost);
  if (meets && membership::name_of_job_store(*job_) != job_store) on_other_store(epoch);
}

void EpochWatch::on_other_store(std::int64_t epoch) {
  const MutexLock lock(mutex_);
  if (epoch != epoch_ || group_ != nullptr) return;
  lost_ = "the job has another store, which does not have what the ranks of the epoch told each other";
  loss_->set(-1, lost_);
  end_calls();
}

void EpochWatch::on_lost(std::int64_t epoch, const std::string& member) {
  const MutexLock lock(mutex_);
  if (epoch != epoch_) return;
  const auto place = std::find_if(members_.begin(), members_.end(),
                                  [&](std::int64_t number) { return std::to_string(number) == member; });
  const int lost_rank = static_cast<int>(place - members_.begin());
  lost_ = concat("the coordinator says that rank ", lost_rank, " (member ", member, " of the job) is gone");
  loss_->set(lost_rank, lost_);
  end_calls();
}

}  // namespace gradwire::internal
