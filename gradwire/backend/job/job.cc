// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/backend/job/job.h"

#include <algorithm>
#include <vector>

#include "gradwire/backend/job/hosts_internal.h"
#include "gradwire/backend/job/meet_internal.h"
#include "gradwire/backend/registry.h"
#include "gradwire/backend/rendezvous_internal.h"
#include "gradwire/base/error.h"
#include "gradwire/base/log.h"
#include "gradwire/base/nearest.h"
#include "gradwire/base/strings.h"
#include "gradwire/store/prefix_store.h"

namespace gradwire {
namespace {

using internal::MeetingOptions;

constexpr const char* kAuto = "auto";

MeetingOptions meeting_options(const JobOptions& options) {
  MeetingOptions meeting;
  meeting.method = options.method;
  meeting.store = options.store;
  meeting.rank = options.rank;
  meeting.world_size = options.world_size;
  meeting.timeout = options.timeout;
  meeting.caller = "Job";
  meeting.options_name = "JobOptions";
  return meeting;
}

// Before any rank waits for another one.
void require_sense(const JobOptions& options) {
  if (options.timeout.count() <= 0)
    throw InvalidArgument(concat("Job: a timeout of ", options.timeout.count(), " ms; give a positive one"));
  std::vector<std::string> known{kAuto};
  for (const BackendEntry& entry : builtin_backends()) known.emplace_back(entry.name);
  if (std::find(known.begin(), known.end(), options.backend) == known.end())
    throw InvalidArgument(concat("Job: unknown backend '", options.backend, "'", did_you_mean(options.backend, known),
                                 "; known are ", join(known, ", ")));
}

std::string choose(const std::string& asked, Store& store, int rank, int size, Milliseconds timeout) {
  if (asked != kAuto) return asked;
  const std::vector<std::string> hosts = internal::exchange_hosts(store, rank, size, timeout);
  const bool one_host = std::count(hosts.begin(), hosts.end(), hosts.front()) == size;
  log::info(concat("rank ", rank, " of ", size, ": backend ", one_host ? "shm" : "ucx", ", because the ranks are on ",
                   one_host ? "one host" : "several hosts"));
  return one_host ? "shm" : "ucx";
}

}  // namespace

// Members go in the reverse order: the backend before the store that it met in.
struct Job::Parts {
  internal::Meeting meeting;
  std::shared_ptr<Store> store;
  std::string backend_name;
  std::unique_ptr<Backend> backend;
};

Job::Job(const JobOptions& options) : parts_(std::make_unique<Parts>()) {
  require_sense(options);
  const Deadline deadline = Deadline::after(options.timeout);
  Parts& p = *parts_;
  p.meeting = internal::meet(meeting_options(options), options.name, {"hosts", "backend"});
  const std::shared_ptr<Store> meeting = p.meeting.membership->store();
  p.store = std::make_shared<PrefixStore>("user", meeting);
  const auto hosts = std::make_shared<PrefixStore>("hosts", meeting);
  BackendOptions made;
  made.store = std::make_shared<PrefixStore>("backend", meeting);
  made.rank = p.meeting.place.rank;
  made.size = p.meeting.place.world_size;
  internal::heard_by_all(*p.meeting.membership, [&] {
    rendezvous::claim_backend({hosts, made.store}, "Job", made.rank, options.backend);
    p.backend_name = choose(options.backend, *hosts, made.rank, made.size, deadline.remaining());
    made.timeout = deadline.remaining();
    p.backend = make_backend(p.backend_name, made);
  });
}

Job::~Job() = default;

int Job::rank() const noexcept { return parts_->meeting.place.rank; }
int Job::size() const noexcept { return parts_->meeting.place.world_size; }
const std::string& Job::backend_name() const noexcept { return parts_->backend_name; }
Backend& Job::backend() noexcept { return *parts_->backend; }
Channel& Job::channel() noexcept { return parts_->backend->channel(); }
const std::shared_ptr<Store>& Job::store() const noexcept { return parts_->store; }

}  // namespace gradwire
