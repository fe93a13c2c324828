// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "launch/pulse.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <utility>

#include "gradwire/base/strings.h"
#include "launch/launch_error.h"
#include "launch/pipe.h"

namespace gradwire::launch {
namespace {

constexpr Milliseconds kBetweenBeats{200};
constexpr const char* kWhatFor = "from the coordinator of the elastic job";

}  // namespace

void Pulse::beat() noexcept {
  if (!next_.expired()) return;
  next_ = Deadline::after(kBetweenBeats);
  // A full pipe holds signs enough, and a launcher that is gone needs none.
  [[maybe_unused]] const ssize_t written = ::write(fd_, "", 1);
}

UniqueFd PulseWatch::begin(Time now) {
  Pipe pipe = make_pipe(kWhatFor);
  for (const int end : {pipe.reader.get(), pipe.writer.get()}) {
    if (::fcntl(end, F_SETFL, O_NONBLOCK) != 0) throw_errno(concat("cannot make a pipe ", kWhatFor));
  }
  reader_ = std::move(pipe.reader);
  looked_ = now;
  silent_ = {};
  return std::move(pipe.writer);
}

bool PulseWatch::finds_silence(Time now) {
  if (reader_.get() < 0 || now < looked_ + kLook) return false;
  looked_ = now;
  silent_ += kLook;
  std::array<char, 256> beats;
  while (::read(reader_.get(), beats.data(), beats.size()) > 0) silent_ = {};
  if (silent_ < limit_) return false;
  end();
  return true;
}

Deadline PulseWatch::next_look() const {
  return reader_.get() < 0 ? Deadline::never() : Deadline::after(kLook, looked_);
}

}  // namespace gradwire::launch
