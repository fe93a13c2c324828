// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The backend itself: collectives of GenericChannel over the messages of the engine.
#include <algorithm>
#include <atomic>
#include <sstream>
#include <utility>

#include "gradwire/backend/fingerprint_internal.h"
#include "gradwire/backend/generic/generic_channel.h"
#include "gradwire/backend/mpi/engine_internal.h"
#include "gradwire/backend/mpi/plugin_internal.h"
#include "gradwire/backend/rendezvous_internal.h"
#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/base/trace.h"

namespace gradwire::mpi {
namespace {

// What the channels of one group have in common. The group is known to the engine as long as one of them is there.
class Membership {
 public:
  Membership(std::shared_ptr<Engine> engine, std::uint64_t number, int rank, int size)
      : engine_(std::move(engine)), number_(number), rank_(rank), size_(size) {
    engine_->add_group(number_, rank_);
  }
  ~Membership() { engine_->remove_group(number_); }
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;

  Engine& engine() const noexcept { return *engine_; }
  const std::shared_ptr<Engine>& shared_engine() const noexcept { return engine_; }
  std::uint64_t number() const noexcept { return number_; }
  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  // Rank 0's number for the next channel; the others take its word.
  std::uint32_t next_channel() noexcept { return channels_.fetch_add(1); }

 private:
  const std::shared_ptr<Engine> engine_;
  const std::uint64_t number_;
  const int rank_;
  const int size_;
  std::atomic<std::uint32_t> channels_{1};
};

class MpiRequest final : public Request {
 public:
  MpiRequest(std::shared_ptr<Engine> engine, MessagePtr message)
      : engine_(std::move(engine)), message_(std::move(message)) {}
  ~MpiRequest() override { engine_->cancel(message_); }
  Status wait(Deadline deadline) override { return engine_->wait(message_, deadline); }
  bool done() override { return engine_->done(message_); }

 private:
  const std::shared_ptr<Engine> engine_;
  const MessagePtr message_;
};

class MpiChannel final : public GenericChannel {
 public:
  MpiChannel(std::shared_ptr<Membership> membership, std::uint32_t number)
      : membership_(std::move(membership)), key_{membership_->number(), number} {}
  ~MpiChannel() override { membership_->engine().remove_channel(key_); }

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
    auto* const from = const_cast<std::byte*>(static_cast<const std::byte*>(data));  // a send only reads it
    return start({Message::Direction::send, key_, destination, tag, from, bytes});
  }
  std::shared_ptr<Request> start_receive(void* data, std::size_t bytes, int source, std::uint32_t tag) override {
    return start({Message::Direction::receive, key_, source, tag, static_cast<std::byte*>(data), bytes});
  }
  void announce_end(std::string_view reason) noexcept override { membership_->engine().end_channel(key_, reason); }

 private:
  std::shared_ptr<Request> start(Message description) {
    MessagePtr message = membership_->engine().post(std::move(description));
    return std::make_shared<MpiRequest>(membership_->shared_engine(), std::move(message));
  }

  const std::shared_ptr<Membership> membership_;
  const ChannelKey key_;
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
std::vector<int> meet(const BackendOptions& options, const Engine& engine, Deadline deadline) {
  options.store->set(place_key(options.rank), concat(engine.job(), " ", engine.rank()));
  std::vector<int> processes;
  for (int rank = 0; rank < options.size; ++rank) {
    std::istringstream words(rendezvous::await_key(*options.store, place_key(rank), rank, deadline));
    std::uint64_t job = 0;
    int process = -1;
    words >> job >> process;
    if (job != engine.job()) {
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

std::uint64_t agree_on_number(const BackendOptions& options, Engine& engine, Deadline deadline) {
  const std::string key = "mpi/group";
  if (options.rank != 0) return std::stoull(rendezvous::await_key(*options.store, key, 0, deadline));
  const std::uint64_t number = engine.new_group_number();
  options.store->set(key, std::to_string(number));
  return number;
}

std::unique_ptr<Backend> make(const BackendOptions& options) {
  trace::point("rendezvous.begin", options.rank);
  const Deadline deadline = Deadline::after(options.timeout);
  std::shared_ptr<Engine> engine = Engine::of_this_process(options.size, deadline);
  const std::uint64_t number = agree_on_number(options, *engine, deadline);
  // Known here before anybody can know that this rank is there, so that no frame of the group comes too early.
  const auto membership = std::make_shared<Membership>(engine, number, options.rank, options.size);
  engine->place_group(number, meet(options, *engine, deadline));
  trace::point("rendezvous.connected", options.rank);
  auto backend = std::make_unique<MpiBackend>(membership);
  backend->channel().barrier({deadline, {}});
  return backend;
}

}  // namespace
}  // namespace gradwire::mpi

extern "C" {
extern const gradwire::mpi::Plugin gradwire_mpi_plugin;
const gradwire::mpi::Plugin gradwire_mpi_plugin{GRADWIRE_VERSION, &gradwire::mpi::make};
}
