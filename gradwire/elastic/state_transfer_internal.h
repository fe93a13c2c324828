// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// How the whole state of a job goes from the members that hold it to the members that do not: in pieces, each of which
// comes from another member, so that the state does not wait for the uplink of one.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "gradwire/elastic/traffic_watch_internal.h"
#include "gradwire/elastic/training_state_internal.h"
#include "gradwire/process_group/process_group.h"

namespace gradwire::internal {

// The same on all ranks. Every rank is on one of the lists.
struct TransferRanks {
  std::vector<int> givers;  // they hold the same parameters; in ascending order, at least one
  std::vector<int> takers;  // in ascending order
};

// The state of a rank, of which it gives or which it compares with what the others give.
struct StateSource {
  std::vector<at::Tensor> tensors;                    // as TrainingState::tensors(), on any device
  std::size_t rest_parts = 0;                         // the same on all ranks
  std::function<std::vector<StatePart>()> save_rest;  // as TrainingState::save_rest(); called on givers
  bool takes_in_place = false;                        // what a taker gets may be written to `tensors`
};
// The state as it is when it is given.
StateSource source_of(const TrainingState& state);
// For a taker whose state may change meanwhile: the state as it is now.
StateSource taker_of(const TrainingState& state);

// What a taker got.
struct StateParcel {
  std::vector<at::Tensor> tensors;  // as TrainingState::tensors(), on the CPU
  // As TrainingState::save_rest(): the bytes of the text of each part, and of its tensors.
  struct Part {
    at::Tensor text;
    std::vector<at::Tensor> tensors;
  };
  std::vector<Part> rest;

  // For TrainingState::load_rest(). The texts are those of this object.
  std::vector<ArrivedPart> arrived_rest() const;
};

// What passed in a transfer, for a log line.
struct TransferReport {
  std::int64_t bytes = 0;  // that this rank got
  int givers = 0;          // the members that gave parts of it
  double seconds = 0;      // that the pieces took, once all ranks knew which
};

// Says in the log what this rank got. `when`: the end of the sentence.
void log_transfer(const TransferReport& report, const TransferRanks& ranks, const std::string& when = "");

// Collective over `group`, at the beginning of an epoch. The state comes in pieces: each from one of the givers in turn
// that hold the piece with the bits of the first giver's. Buffers, and the texts in which the rest is written, may
// differ between givers. A taker gets only the pieces of parameters and buffers that differ from its own. From a single
// giver, what any taker lacks is broadcast. Costs a hash of each piece. Returns the parcel on takers, and an empty one
// on givers. `report`: null, or set on takers. `sender`: null, or sends a giver's pieces. Changes nothing of the
// state. Throws what the group throws.
StateParcel transfer_state(ProcessGroup& group, const StateSource& state, const TransferRanks& ranks,
                           TransferReport* report = nullptr, YieldingSender* sender = nullptr);

// Sends a row of bytes to `rank` in pieces, each when `sender` allows it, or receives it. Calls `sent` after each
// piece. Both return when all pieces have arrived, and throw what the group throws.
void send_in_pieces(ProcessGroup& group, const at::Tensor& bytes, int rank, YieldingSender& sender,
                    const std::function<void()>& sent);
void recv_in_pieces(ProcessGroup& group, const at::Tensor& bytes, int rank);

// Puts the parcel in the place of the state. Throws InternalError when the tensors do not have the hash `hash` then.
void take_over(TrainingState& state, const StateParcel& parcel, std::int64_t hash);

}  // namespace gradwire::internal
