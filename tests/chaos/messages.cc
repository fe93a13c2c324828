// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/chaos/messages.h"

#include "gradwire/base/strings.h"

namespace gradwire::testing {

Bytes message(const Member& self, std::size_t bytes, int from) {
  return make_input(DType::u8, bytes, from, self.fault().detail % 1'000'000);
}

void wait_for(Member& self, Request& receive, const Bytes& got) {
  const Request::Status status = receive.wait(guard());
  if (status.source != self.victim() || status.bytes != got.size()) {
    return Member::report(Complaint::wrong, concat("received ", status.bytes, " bytes from rank ", status.source));
  }
  const std::string where = difference(got.data(), message(self, got.size(), self.victim()), DType::u8);
  if (!where.empty()) Member::report(Complaint::wrong, "a message differs: " + where);
}

}  // namespace gradwire::testing
