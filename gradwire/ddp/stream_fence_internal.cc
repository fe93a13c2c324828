// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/ddp/stream_fence_internal.h"

#include <ATen/Functions.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

namespace gradwire::internal {
namespace {

c10::Stream current_stream(const at::Device& device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

}  // namespace

void StreamFence::add_current(const at::Device& device) {
  if (device.is_cpu()) return;
  add(current_stream(device));
}

void StreamFence::add_streams_of(const StreamFence& other) {
  for (const c10::Stream& stream : other.streams_) add(stream);
}

void StreamFence::add(const c10::Stream& stream) {
  if (std::find(streams_.begin(), streams_.end(), stream) == streams_.end()) streams_.push_back(stream);
}

void StreamFence::record() {
  events_.clear();
  for (const c10::Stream& stream : streams_) events_.emplace_back(stream.device_type()).record(stream);
}

void StreamFence::wait() const {
  for (std::size_t i = 0; i < events_.size(); ++i) {
    const c10::Stream current = current_stream(streams_[i].device());
    if (current != streams_[i]) events_[i].block(current);
  }
}

void StreamFence::wait_on_host() const {
  for (const c10::Event& event : events_) event.synchronize();
}

bool StreamFence::ended() const {
  return std::all_of(events_.begin(), events_.end(), [](const c10::Event& event) { return event.query(); });
}

c10::Stream OwnStreams::on(const at::Device& device) {
  for (const c10::Stream& stream : streams_) {
    if (stream.device() == device) return stream;
  }
  return streams_.emplace_back(c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device));
}

void keep_for_current_stream(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.is_cpu()) return;
  if (tensor.is_sparse()) {
    keep_for_current_stream(tensor._indices());
    keep_for_current_stream(tensor._values());
    return;
  }
  c10::impl::VirtualGuardImpl(tensor.device().type())
      .recordDataPtrOnStream(tensor.storage().data_ptr(), current_stream(tensor.device()));
}

}  // namespace gradwire::internal
