// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/ddp/step_agreement_internal.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "gradwire/base/error.h"
#include "gradwire/base/interrupt.h"
#include "gradwire/base/strings.h"
#include "gradwire/ddp/replica_sync_internal.h"

namespace gradwire::internal {
namespace {

// No other message of `control` has this tag.
constexpr int kTag = 0x27775300;

// A device cannot wake a thread that also waits for a message, so the thread asks both in turn.
constexpr std::chrono::microseconds kFirstPause{10};
constexpr std::chrono::microseconds kLongestPause{200};

using Works = std::vector<std::shared_ptr<Work>>;

std::shared_ptr<Work> receive(ProcessGroup& control, int source) {
  return control.recv({at::zeros({1}, at::kByte)}, source, kTag);
}

void send(ProcessGroup& control, int destination) {
  control.send({at::zeros({1}, at::kByte)}, destination, kTag)->wait();
}

// The words that this rank waits for: rank 0 for those of all others, the others for that of rank 0.
Works expect_words(ProcessGroup& control) {
  Works words;
  if (control.rank() != 0) words.push_back(receive(control, 0));
  for (int rank = 1; control.rank() == 0 && rank < control.size(); ++rank) words.push_back(receive(control, rank));
  return words;
}

// Throws the error of the words that have failed, and forgets those that have come.
void look_at(Works& words) {
  const auto came = [](const std::shared_ptr<Work>& word) { return word->is_completed() && word->wait(); };
  std::erase_if(words, came);
}

void wait_for_devices(ProcessGroup& control, const std::function<bool()>& ended, Works& words) {
  const Deadline deadline = Deadline::after(control.timeout());
  for (auto pause = kFirstPause; !ended(); pause = std::min(pause * 2, kLongestPause)) {
    look_at(words);
    throw_if_interrupted("the reduction of gradients on a device");
    if (deadline.expired()) {
      throw TimeoutError(concat("DistributedDataParallel on rank ", control.rank(),
                                ": the device had not ended the reduction of the gradients after ",
                                control.timeout().count(),
                                " ms; another rank did not make the same calls on its device, or its device hangs"));
    }
    std::this_thread::sleep_for(pause);
  }
}

}  // namespace

void end_step_together(ProcessGroup& control, const std::function<bool()>& ended) {
  if (control.size() == 1) return;
  Works words;
  try {
    words = expect_words(control);
  } catch (const UnsupportedError&) {
    wait_for_devices(control, ended, words);
    gather_integers(control, {0});
    return;
  }
  wait_for_devices(control, ended, words);
  if (control.rank() != 0) send(control, 0);
  for (const std::shared_ptr<Work>& word : std::exchange(words, {})) word->wait();
  for (int rank = 1; control.rank() == 0 && rank < control.size(); ++rank) send(control, rank);
}

}  // namespace gradwire::internal
