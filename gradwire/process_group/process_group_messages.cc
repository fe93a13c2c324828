// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The messages of ProcessGroup from one rank to another.
#include <memory>

#include "gradwire/base/strings.h"
#include "gradwire/process_group/message_tags_internal.h"
#include "gradwire/process_group/prepared_call_internal.h"
#include "gradwire/process_group/process_group.h"
#include "gradwire/process_group/validate_internal.h"

namespace gradwire {

using internal::arguments_of;
using internal::kFirstInternalTag;
using internal::NoOutputs;
using internal::PreparedCall;
using internal::Validator;
using observe::CallKind;

namespace {

observe::CallArguments of_message(observe::CallArguments arguments, int peer, int tag) {
  arguments.root = peer;
  arguments.message_tag = tag;
  return arguments;
}

void check_tag(const Validator& check, int tag) {
  if (tag < 0 || tag >= kFirstInternalTag)
    check.fail(concat("the tag is ", tag, "; tags are in [0, ", kFirstInternalTag, ")"));
}

void check_message(const Validator& check, const char* peer_name, int peer, int tag, const ProcessGroup& group) {
  check.rank(peer_name, peer);
  if (peer == group.rank()) check.fail(concat(peer_name, " is this rank itself"));
  check_tag(check, tag);
}

}  // namespace

std::shared_ptr<Work> ProcessGroup::send(Tensors tensors, int destination, int tag) {
  const Validator check(*this, "send");
  check.tensors("tensors", tensors);
  check_message(check, "the destination", destination, tag, *this);
  return enter(
      "send",
      PreparedCall{of_message(arguments_of(CallKind::send, __builtin_return_address(0), tensors), destination, tag),
                   NoOutputs(), [&](ProcessGroup& group) { return group.do_send(tensors, destination, tag); }});
}

std::shared_ptr<Work> ProcessGroup::recv(Tensors tensors, int source, int tag) {
  const Validator check(*this, "recv");
  check.outputs("tensors", tensors);
  check_message(check, "the source", source, tag, *this);
  return enter("recv",
               PreparedCall{of_message(arguments_of(CallKind::recv, __builtin_return_address(0), tensors), source, tag),
                            tensors, [&](ProcessGroup& group) { return group.do_recv(tensors, source, tag); }});
}

std::shared_ptr<Work> ProcessGroup::recv_anysource(Tensors tensors, int tag) {
  const Validator check(*this, "recv_anysource");
  check.outputs("tensors", tensors);
  if (tensors.size() != 1)
    check.fail(
        concat("a list of ", tensors.size(), " tensors, which could come from different ranks; receive one at a time"));
  check_tag(check, tag);
  return enter("recv_anysource",
               PreparedCall{of_message(arguments_of(CallKind::recv_anysource, __builtin_return_address(0), tensors),
                                       /*peer=*/-1, tag),
                            tensors, [&](ProcessGroup& group) { return group.do_recv_anysource(tensors, tag); }});
}

}  // namespace gradwire
