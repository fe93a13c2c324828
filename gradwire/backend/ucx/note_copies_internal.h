// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The notes that UCX does not take at once: it gets copies of them.
#pragma once

#include <ucp/api/ucp.h>

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <vector>

#include "gradwire/backend/ucx/note_internal.h"

namespace gradwire::ucx {

// Owns the copies that UCX has under way, and keeps some memory for the next ones. UCX gives copies back while this
// rank calls it, so this is used by one thread at a time. Outlives UCX's worker.
class NoteCopies {
 public:
  explicit NoteCopies(std::size_t peers) : to_peer_(peers) {}
  NoteCopies(const NoteCopies&) = delete;
  NoteCopies& operator=(const NoteCopies&) = delete;

  // Gives UCX a copy of the note. `flags`: UCP_OP_ATTR_FLAG_*. Returns UCS_OK when UCX has the note. Throws
  // std::bad_alloc.
  ucs_status_t send(ucp_ep_h endpoint, std::size_t peer, const Envelope& envelope, std::span<const std::byte> payload,
                    std::uint32_t flags);

  bool empty() const noexcept { return under_way_.empty(); }
  std::size_t under_way_to(std::size_t peer) const noexcept { return to_peer_[peer]; }
  // How many UCX has given back so far: when there are more, there is room again.
  std::uint64_t given_back() const noexcept { return given_back_; }

 private:
  // The lists own the copies; UCX knows their place.
  struct Copy {
    NoteCopies* owner = nullptr;
    std::size_t peer = 0;
    std::unique_ptr<std::byte[]> memory;
    std::size_t capacity = 0;
    std::list<Copy>::iterator place;
  };

  static void on_sent(void* request, ucs_status_t status, void* copy);
  Copy& take(std::size_t bytes);
  void put_away(Copy& copy) noexcept;

  std::list<Copy> under_way_;
  std::list<Copy> spare_;
  std::vector<std::size_t> to_peer_;  // of those under way
  std::uint64_t given_back_ = 0;
};

}  // namespace gradwire::ucx
