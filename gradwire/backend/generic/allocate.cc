// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// Memory of the ranks' own, with an agreed outcome.
//
// Algorithm: every rank asks its machine, then tells every other whether it was refused (GenericChannel::share).
// Terms: N ranks. Bytes on the wire: N (N - 1), beside the fingerprints.
#include <algorithm>
#include <vector>

#include "gradwire/backend/fingerprint_internal.h"
#include "gradwire/backend/generic/generic_channel.h"
#include "gradwire/backend/validate_internal.h"
#include "gradwire/base/error.h"
#include "gradwire/base/os_handles.h"
#include "gradwire/base/strings.h"

namespace gradwire {

Allocation GenericChannel::allocate(std::size_t bytes, const CallOptions& options) {
  validate::allocate(*this, bytes);
  std::vector<std::byte> refused(static_cast<std::size_t>(size()));
  Allocation allocation{nullptr, bytes, false};
  run(fingerprint_of(Operation::allocate, DType::u8, bytes), options, [&] {
    try {
      const auto mapping = std::make_shared<Mapping>(Mapping::anonymous(std::max<std::size_t>(bytes, 1)));
      allocation.data = {mapping, mapping->data()};
    } catch (const ResourceError&) {  // told to all below
    }
    const std::byte mine{allocation.data == nullptr};
    refused[static_cast<std::size_t>(rank())] = mine;
    share(&mine, refused.data(), 1, options.deadline);
  });
  for (std::size_t r = 0; r < refused.size(); ++r) {
    if (refused[r] != std::byte{0})
      throw ResourceError(concat("allocate on rank ", rank(), " of ", size(), ": rank ", r, " was refused ", bytes,
                                 " bytes; ask for fewer, or free memory on that rank's host"));
  }
  return allocation;
}

}  // namespace gradwire
