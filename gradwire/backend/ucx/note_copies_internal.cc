// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/backend/ucx/note_copies_internal.h"

#include <cstring>
#include <iterator>

#include "gradwire/backend/ucx/active_message_internal.h"

namespace gradwire::ucx {
namespace {

constexpr std::size_t kSpareCopies = 64;

}  // namespace

ucs_status_t NoteCopies::send(ucp_ep_h endpoint, std::size_t peer, const Envelope& envelope,
                              std::span<const std::byte> payload, std::uint32_t flags) {
  Copy& copy = take(sizeof(envelope) + payload.size());
  copy.peer = peer;
  std::byte* const copied_payload = copy.memory.get() + sizeof(envelope);
  std::memcpy(copy.memory.get(), &envelope, sizeof(envelope));
  if (!payload.empty()) std::memcpy(copied_payload, payload.data(), payload.size());
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | flags;
  param.cb.send = &NoteCopies::on_sent;
  param.user_data = &copy;
  void* const request = ucp_am_send_nbx(endpoint, kActiveMessage, copy.memory.get(), sizeof(envelope), copied_payload,
                                        payload.size(), &param);
  if (UCS_PTR_IS_PTR(request)) {
    ++to_peer_[peer];
    return UCS_OK;
  }
  put_away(copy);
  return UCS_PTR_STATUS(request);
}

void NoteCopies::on_sent(void* request, ucs_status_t, void* argument) {
  Copy& copy = *static_cast<Copy*>(argument);
  NoteCopies& copies = *copy.owner;
  --copies.to_peer_[copy.peer];
  ++copies.given_back_;
  copies.put_away(copy);
  ucp_request_free(request);
}

NoteCopies::Copy& NoteCopies::take(std::size_t bytes) {
  if (spare_.empty()) {
    spare_.emplace_back();
    spare_.back().owner = this;
    spare_.back().place = std::prev(spare_.end());
  }
  Copy& copy = spare_.back();
  if (copy.capacity < bytes) {
    copy.capacity = 0;
    copy.memory = std::make_unique_for_overwrite<std::byte[]>(bytes);
    copy.capacity = bytes;
  }
  under_way_.splice(under_way_.end(), spare_, copy.place);
  return copy;
}

void NoteCopies::put_away(Copy& copy) noexcept {
  if (spare_.size() < kSpareCopies) {
    spare_.splice(spare_.end(), under_way_, copy.place);
  } else {
    under_way_.erase(copy.place);
  }
}

}  // namespace gradwire::ucx
