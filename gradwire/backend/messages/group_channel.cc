// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/backend/messages/group_channel_internal.h"

#include <new>
#include <utility>

#include "gradwire/backend/fingerprint_internal.h"
#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/base/trace.h"

namespace gradwire::messages {

// --- what the channels share ---------------------------------------------------------------------------------------

Group::Group(Options options)
    : options_(std::move(options)),
      left_{concat("rank ", options_.rank, " left the group"), true},
      destroyed_(std::make_exception_ptr(
          AbortedError(concat("rank ", options_.rank, ": the group was destroyed meanwhile")))) {}

Group::~Group() { engine().remove_channels(options_.first_channel, options_.first_channel + kChannels - 1); }

void Group::place(std::vector<int> peers) {
  members_ = std::make_shared<Members>(Members{options_.rank, std::move(peers)});
}

std::uint32_t Group::next_channel() {
  const std::uint32_t number = channels_.fetch_add(1);
  if (number >= kChannels) {
    throw ResourceError(concat("backend ", options_.backend, ": the group has as many duplicates as there can be"));
  }
  return number;
}

// --- one channel ---------------------------------------------------------------------------------------------------

GroupChannel::GroupChannel(std::shared_ptr<Group> group, std::uint32_t number)
    : GenericChannel(group->size()), group_(std::move(group)), number_(group_->channel(number)) {
  group_->engine().add_channel(number_, group_->members(), group_->failure_of());
}

GroupChannel::~GroupChannel() {
  group_->engine().end_channel(number_, group_->destroyed(), &group_->left());
  group_->engine().remove_channels(number_, number_);
}

std::unique_ptr<Channel> GroupChannel::duplicate(const CallOptions& options) {
  std::unique_ptr<GroupChannel> made;
  try {
    run(fingerprint_of(Operation::duplicate), options, [&] {
      std::vector<std::uint32_t> numbers(static_cast<std::size_t>(size()));
      const std::uint32_t mine = rank() == 0 ? group_->next_channel() : 0;
      numbers[static_cast<std::size_t>(rank())] = mine;
      share(&mine, numbers.data(), sizeof(mine), options.deadline);
      made = std::make_unique<GroupChannel>(group_, numbers[0]);
      // Nobody gets the duplicate before all know its number: who fails from then on tells the others there.
      std::vector<std::byte> known(static_cast<std::size_t>(size()));
      const std::byte yes{1};
      known[static_cast<std::size_t>(rank())] = yes;
      trace::point("duplicate.last_step", rank());
      share(&yes, known.data(), sizeof(yes), options.deadline);
    });
  } catch (const PeerError& error) {
    if (made != nullptr) made->announce_end(describe(std::current_exception()), error.peers());
    throw;
  } catch (...) {
    if (made != nullptr) made->announce_end(describe(std::current_exception()), {});
    throw;
  }
  return made;
}

void GroupChannel::tell_all(const void* mine, void* all, std::size_t bytes, const CallOptions& options) {
  run(fingerprint_of(Operation::all_gather, DType::u8, bytes), options,
      [&] { share(mine, all, bytes, options.deadline); });
}

std::shared_ptr<Request> GroupChannel::start_send(const void* data, std::size_t bytes, int destination,
                                                  std::uint32_t tag) {
  return group_->engine().isend(number_, data, bytes, destination, tag);
}

std::shared_ptr<Request> GroupChannel::start_receive(void* data, std::size_t bytes, int source, std::uint32_t tag) {
  return group_->engine().irecv(number_, data, bytes, source, tag);
}

void GroupChannel::announce_end(std::string_view reason, std::span<const int> at_fault) noexcept {
  try {
    const Notice notice{std::string(reason), false, {at_fault.begin(), at_fault.end()}};
    group_->engine().end_channel(number_, std::make_exception_ptr(AbortedError(notice.text)), &notice);
  } catch (const std::bad_alloc&) {
    group_->engine().end_channel(number_, group_->destroyed(), &group_->left());
  }
}

}  // namespace gradwire::messages
