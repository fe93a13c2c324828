// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The backend itself: collectives of GenericChannel over the engine of messages.
#include <algorithm>
#include <atomic>
#include <sstream>
#include <utility>

#include "gradwire/backend/fingerprint_internal.h"
#include "gradwire/backend/generic/generic_channel.h"
#include "gradwire/backend/mpi/job_internal.h"
#include "gradwire/backend/plugin_internal.h"
#include "gradwire/backend/rendezvous_internal.h"
#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/base/trace.h"

namespace gradwire::mpi {
namespace {

// Numbers of channels: 40 bits for the group, the rest for its channels.
constexpr std::uint64_t kChannels = std::uint64_t{1} << 24;

// What the channels of one group have in common.
class Membership {
 public:
  Membership(std::shared_ptr<Job> job, std::uint64_t number, int rank, int size)
      : job_(std::move(job)),
        first_(number * kChannels),
        rank_(rank),
        size_(size),
        left_{concat("rank ", rank, " left the group"), true},
        destroyed_(
            std::make_exception_ptr(AbortedError(concat("rank ", rank, ": the group was destroyed meanwhile")))) {}
  ~Membership() { engine().remove_channels(first_, first_ + kChannels - 1); }
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;

  // Which process of the MPI job each rank is.
  void place(std::vector<int> processes) {
    members_ = std::make_shared<messages::Members>(messages::Members{rank_, std::move(processes)});
  }

  messages::Engine& engine() const noexcept { return job_->engine(); }
  const std::shared_ptr<const messages::Members>& members() const noexcept { return members_; }
  std::uint64_t channel(std::uint32_t number) const noexcept { return first_ + number; }
  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  // Rank 0's number for the next channel; the others take its word. Throws ResourceError when there is none left.
  std::uint32_t next_channel() {
    const std::uint32_t number = channels_.fetch_add(1);
    if (number >= kChannels) throw ResourceError("backend mpi: the group has as many duplicates as there can be");
    return number;
  }
  // For the end of a channel: what the others hear, and requests of this rank.
  const messages::Notice& left() const noexcept { return left_; }
  const std::exception_ptr& destroyed() const noexcept { return destroyed_; }

 private:
  const std::shared_ptr<Job> job_;
  const std::uint64_t first_;  // channel
  const int rank_;
  const int size_;
  const messages::Notice left_;
  const std::exception_ptr destroyed_;
  std::shared_ptr<const messages::Members> members_;
  std::atomic<std::uint32_t> channels_{1};
};

class MpiChannel final : public GenericChannel {
 public:
  MpiChannel(std::shared_ptr<Membership> membership, std::uint32_t number)
      : membership_(std::move(membership)), number_(membership_->channel(number)) {
    engine().add_channel(number_, membership_->members(), nullptr);
  }
  ~MpiChannel() override {
    engine().end_channel(number_, membership_->destroyed(), &membership_->left());
    engine().remove_channels(number_, number_);
  }

  int rank() const noexcept override { return membership_->rank(); }
  int size() const noexcept override { return membership_->size(); }

  std::unique_ptr<Channel> duplicate(const CallOptions& options) override {
    std::unique_ptr<Channel> channel;
    run(fingerprint_of(Operation::duplicate), options, [&] {
      std::vector<std::uint32_t> numbers(static_cast<std::size_t>(size()));
      const std::uint32_t mine = rank() == 0 ? membership_->next_channel() : 0;
      numbers[static_cast<std::size_t>(rank())] = mine;
      share(&mine, numbers.data(), sizeof(mine), options.deadline);
      channel = std::make_unique<MpiChannel>(membership_, numbers[0]);
    });
    return channel;
  }

 protected:
  std::shared_ptr<Request> start_send(const void* data, std::size_t bytes, int destination,
                                      std::uint32_t tag) override {
    return engine().isend(number_, data, bytes, destination, tag);
  }
  std::shared_ptr<Request> start_receive(void* data, std::size_t bytes, int source, std::uint32_t tag) override {
    return engine().irecv(number_, data, bytes, source, tag);
  }
  void announce_end(std::string_view reason) noexcept override {
    try {
      const messages::Notice notice{std::string(reason), false};
      engine().end_channel(number_, std::make_exception_ptr(AbortedError(notice.text)), &notice);
    } catch (const std::bad_alloc&) {
      engine().end_channel(number_, membership_->destroyed(), &membership_->left());
    }
  }

 private:
  messages::Engine& engine() const noexcept { return membership_->engine(); }

  const std::shared_ptr<Membership> membership_;
  const std::uint64_t number_;
};

class MpiBackend final : public Backend {
 public:
  explicit MpiBackend(std::shared_ptr<Membership> membership) : channel_(std::move(membership), 0) {}
  std::string_view name() const noexcept override { return "mpi"; }
  int rank() const noexcept override { return channel_.rank(); }
  int size() const noexcept override { return channel_.size(); }
  Capabilities capabilities() const noexcept override {
    return {.in_place_memory = false,
            .bitwise_equal = true,
            .detects_mismatch = true,
            .detects_death = false,
            .crosses_hosts = true};
  }
  Channel& channel() noexcept override { return channel_; }

 private:
  MpiChannel channel_;
};

std::string place_key(int rank) { return concat("mpi/place/", rank); }

// The process in the MPI job of each rank of the group. Throws InvalidArgument unless they are processes of one job.
std::vector<int> meet(const BackendOptions& options, const Job& job, Deadline deadline) {
  options.store->set(place_key(options.rank), concat(job.number(), " ", job.rank()));
  std::vector<int> processes;
  for (int rank = 0; rank < options.size; ++rank) {
    std::istringstream words(rendezvous::await_key(*options.store, place_key(rank), rank, deadline));
    std::uint64_t number = 0;
    int process = -1;
    words >> number >> process;
    if (number != job.number()) {
      throw InvalidArgument(concat("backend mpi on rank ", options.rank, ": rank ", rank,
                                   " is in another MPI job; start all ranks with one mpirun or srun"));
    }
    if (std::find(processes.begin(), processes.end(), process) != processes.end()) {
      throw InvalidArgument(concat("backend mpi: rank ", rank, " shares process ", process,
                                   " of the MPI job with another rank; each needs a process of its own"));
    }
    processes.push_back(process);
  }
  return processes;
}

std::uint64_t agree_on_number(const BackendOptions& options, Job& job, Deadline deadline) {
  const std::string key = "mpi/group";
  if (options.rank != 0) return std::stoull(rendezvous::await_key(*options.store, key, 0, deadline));
  const std::uint64_t number = job.new_group_number();
  options.store->set(key, std::to_string(number));
  return number;
}

std::unique_ptr<Backend> make(const BackendOptions& options) {
  trace::point("rendezvous.begin", options.rank);
  const Deadline deadline = Deadline::after(options.timeout);
  std::shared_ptr<Job> job = Job::of_this_process(options.size, deadline);
  const std::uint64_t number = agree_on_number(options, *job, deadline);
  // Should this rank fail from here on, it drops what others send it already.
  const auto membership = std::make_shared<Membership>(job, number, options.rank, options.size);
  membership->place(meet(options, *job, deadline));
  trace::point("rendezvous.connected", options.rank);
  auto backend = std::make_unique<MpiBackend>(membership);
  backend->channel().barrier({deadline, {}});
  return backend;
}

}  // namespace
}  // namespace gradwire::mpi

extern "C" {
extern const gradwire::plugin::Entry gradwire_mpi_plugin;
const gradwire::plugin::Entry gradwire_mpi_plugin{GRADWIRE_VERSION, &gradwire::mpi::make};
}
