// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/elastic/state_transfer_internal.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <deque>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/log.h"
#include "gradwire/base/strings.h"
#include "gradwire/ddp/byte_exchange_internal.h"
#include "gradwire/ddp/replica_sync_internal.h"

namespace gradwire::internal {
namespace {

// What is under way delays a call of a step that begins meanwhile, by 2 ms at 1 Gbit/s.
constexpr std::int64_t kPieceBytes = std::int64_t{256} << 10;
// How many messages a rank has under way: enough to keep the links of several givers busy. Where a giver yields to the
// calls of its steps it is one, because what is under way delays calls that begin meanwhile.
constexpr std::size_t kUnderWay = 128;

bool contains(const std::vector<int>& ranks, int rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

// Calls `visit(piece)` for each piece of `bytes`, a tensor of bytes in one row.
template <class Visit>
void for_each_piece(const at::Tensor& bytes, const Visit& visit) {
  const std::int64_t size = bytes.numel();
  for (std::int64_t begin = 0; begin < size; begin += kPieceBytes)
    visit(bytes.narrow(0, begin, std::min(kPieceBytes, size - begin)));
}

// Bytes that pass, as long as those of the first giver.
struct Row {
  at::Tensor bytes;
  bool known = true;  // this rank has values of its own, and not only memory
};

// Which ranks have which pieces as the first giver has them. Takers lack the others: a newcomer that began with the
// same weights has those that training does not change. Givers may write the rest in other ways, and hold other
// buffers. Pieces have numbers from 0, through all rows.
class Inventory {
 public:
  // Collective.
  Inventory(ProcessGroup& group, const TransferRanks& ranks, const std::vector<Row>& rows) : ranks_(ranks) {
    std::vector<std::int64_t> hashes;
    for (const Row& row : rows) {
      for_each_piece(row.bytes, [&](const at::Tensor& piece) {
        hashes.push_back(row.known ? static_cast<std::int64_t>(hash_of_bits(piece)) : 0);
      });
    }
    hashes_ = gather_integers(group, hashes);
  }
  bool has(int rank, std::size_t piece) const {
    const auto giver = static_cast<std::size_t>(ranks_.givers.front());
    return hashes_[static_cast<std::size_t>(rank)][piece] == hashes_[giver][piece];
  }
  bool all_have(std::size_t piece) const {
    return std::all_of(ranks_.takers.begin(), ranks_.takers.end(), [&](int taker) { return has(taker, piece); });
  }
  std::vector<int> givers_of(std::size_t piece) const {
    std::vector<int> givers;
    for (const int giver : ranks_.givers) {
      if (has(giver, piece)) givers.push_back(giver);
    }
    return givers;
  }

 private:
  const TransferRanks& ranks_;
  std::vector<std::vector<std::int64_t>> hashes_;  // by rank and piece
};

// Messages of one rank that have not arrived.
class UnderWay {
 public:
  // Waits until there is room for another message.
  void make_room() {
    while (works_.size() >= kUnderWay) wait_for_first();
  }
  void add(std::shared_ptr<Work> work) { works_.push_back(std::move(work)); }
  // Waits until all have arrived.
  void finish() {
    while (!works_.empty()) wait_for_first();
  }

 private:
  void wait_for_first() {
    const std::shared_ptr<Work> first = std::move(works_.front());
    works_.pop_front();
    first->wait();
  }

  std::deque<std::shared_ptr<Work>> works_;
};

// Messages between givers and takers, in an order in which no two of them wait for each other: every rank goes through
// the same list of pieces.
class Messages {
 public:
  Messages(ProcessGroup& group, const TransferRanks& ranks, YieldingSender* sender)
      : group_(group), ranks_(ranks), sender_(sender) {}

  // Piece `number` goes to each taker that lacks it, from one of the givers that have it.
  void pass(const at::Tensor& piece, std::size_t number, const Inventory& inventory) {
    const std::vector<int> givers = inventory.givers_of(number);
    for (std::size_t i = 0; i < ranks_.takers.size(); ++i) {
      const int taker = ranks_.takers[i];
      if (!inventory.has(taker, number)) pass_to(piece, givers[(number + i) % givers.size()], taker);
    }
  }
  // Waits until all messages of this rank have arrived.
  void finish() { under_way_.finish(); }
  std::int64_t received() const noexcept { return received_; }
  // From how many givers this rank has got pieces.
  int givers() const noexcept { return static_cast<int>(heard_.size()); }

 private:
  void pass_to(const at::Tensor& piece, int giver, int taker) {
    if (group_.rank() == giver && sender_ != nullptr) {
      sender_->send([&] { group_.send({piece}, taker)->wait(); });
    } else if (group_.rank() == giver) {
      under_way_.make_room();
      under_way_.add(group_.send({piece}, taker));
    }
    if (group_.rank() != taker) return;
    heard_.insert(giver);
    received_ += piece.numel();
    under_way_.make_room();
    under_way_.add(group_.recv({piece}, giver));
  }

  ProcessGroup& group_;
  const TransferRanks& ranks_;
  YieldingSender* const sender_;
  UnderWay under_way_;
  std::int64_t received_ = 0;
  std::set<int> heard_;
};

class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }

 private:
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin_ = Clock::now();
};

// The memory of a dense tensor as bytes.
at::Tensor bytes_of(const at::Tensor& tensor) {
  auto keep = std::make_shared<at::Tensor>(tensor);
  return at::from_blob(
      tensor.data_ptr(), {static_cast<std::int64_t>(tensor.nbytes())}, [keep](void*) mutable { keep.reset(); },
      at::TensorOptions(at::kByte));
}

// The bytes of the rest, part by part: a giver's own, and memory of the right size on a taker.
class Rest {
 public:
  // Collective.
  Rest(ProcessGroup& group, const StateSource& state, const TransferRanks& ranks) {
    if (state.rest_parts == 0) return;
    std::vector<StatePart> own(state.rest_parts);
    const bool gives = contains(ranks.givers, group.rank());
    if (gives) own = state.save_rest();
    std::vector<std::int64_t> counts;
    for (const StatePart& part : own) counts.push_back(static_cast<std::int64_t>(part.tensors.size()));
    const auto giver = static_cast<std::size_t>(ranks.givers.front());
    const std::vector<std::int64_t> count_of = gather_integers(group, counts)[giver];
    // Givers may write a part in other ways, with other tensors: those have nothing of it to give.
    std::vector<std::int64_t> sizes;
    for (std::size_t part = 0; part < own.size(); ++part) {
      const bool fits = gives && counts[part] == count_of[part];
      sizes.push_back(fits ? static_cast<std::int64_t>(own[part].text.size()) : -1);
      for (std::int64_t i = 0; i < count_of[part]; ++i)
        sizes.push_back(fits ? static_cast<std::int64_t>(own[part].tensors[static_cast<std::size_t>(i)].nbytes()) : -1);
    }
    const std::vector<std::int64_t> size_of = gather_integers(group, sizes)[giver];
    for (std::size_t part = 0; part < own.size(); ++part) {
      ends_.push_back((ends_.empty() ? 0 : ends_.back()) + 1 + static_cast<std::size_t>(count_of[part]));
      const std::size_t first = rows_.size();
      add(size_of, sizes, [&] { return tensor_of_text(std::move(own[part].text)); });
      while (rows_.size() < ends_.back())
        add(size_of, sizes, [&] { return bytes_of(own[part].tensors[rows_.size() - first - 1]); });
    }
  }
  const std::vector<Row>& rows() const noexcept { return rows_; }
  std::vector<StateParcel::Part> parts() const {
    std::vector<StateParcel::Part> parts;
    std::size_t row = 0;
    for (const std::size_t end : ends_) {
      StateParcel::Part& part = parts.emplace_back();
      part.text = rows_[row++].bytes;
      while (row < end) part.tensors.push_back(rows_[row++].bytes);
    }
    return parts;
  }

 private:
  template <class Own>
  void add(const std::vector<std::int64_t>& size_of, const std::vector<std::int64_t>& own_sizes, const Own& own) {
    const std::size_t row = rows_.size();
    if (own_sizes[row] == size_of[row]) {
      rows_.push_back({own()});
    } else {
      rows_.push_back({at::empty({size_of[row]}, at::TensorOptions(at::kByte)), false});
    }
  }

  std::vector<Row> rows_;
  std::vector<std::size_t> ends_;  // by part: of its rows
};

// Copies on the CPU.
std::vector<at::Tensor> copies_of(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& tensor : tensors) {
    copies.push_back(tensor.detach().to(at::kCPU, tensor.scalar_type(), /*non_blocking=*/false, /*copy=*/true,
                                        at::MemoryFormat::Contiguous));
  }
  return copies;
}

// A giver's tensors on the CPU without gaps in their memory, and what a taker may write to.
std::vector<at::Tensor> dense_tensors(const StateSource& state, bool gives) {
  if (!gives) return state.takes_in_place ? state.tensors : copies_of(state.tensors);
  std::vector<at::Tensor> dense;
  for (const at::Tensor& tensor : state.tensors) dense.push_back(tensor.detach().cpu().contiguous());
  return dense;
}

TransferReport pass_in_pieces(ProcessGroup& group, const TransferRanks& ranks, const std::vector<Row>& rows,
                              YieldingSender* sender) {
  const Inventory inventory(group, ranks, rows);
  const Stopwatch stopwatch;
  Messages messages(group, ranks, sender);
  std::size_t number = 0;
  for (const Row& row : rows)
    for_each_piece(row.bytes, [&](const at::Tensor& piece) { messages.pass(piece, number++, inventory); });
  messages.finish();
  return {.bytes = messages.received(), .givers = messages.givers(), .seconds = stopwatch.seconds()};
}

// From a single giver, all others take, so one stream reaches them all.
TransferReport broadcast_all(ProcessGroup& group, const TransferRanks& ranks, const std::vector<Row>& rows) {
  const Inventory inventory(group, ranks, rows);
  std::vector<at::Tensor> sent;
  std::size_t number = 0;
  for (const Row& row : rows) {
    bool all_have = true;
    for_each_piece(row.bytes, [&](const at::Tensor&) { all_have = inventory.all_have(number++) && all_have; });
    if (!all_have) sent.push_back(row.bytes);
  }
  const Stopwatch stopwatch;
  broadcast_values(group, sent, ranks.givers.front());
  TransferReport report{.givers = 1, .seconds = stopwatch.seconds()};
  for (const at::Tensor& row : sent) report.bytes += row.numel();
  return report;
}

}  // namespace

std::vector<ArrivedPart> StateParcel::arrived_rest() const {
  std::vector<ArrivedPart> parts;
  for (const Part& part : rest) {
    const std::string_view text(static_cast<const char*>(part.text.const_data_ptr()),
                                static_cast<std::size_t>(part.text.numel()));
    parts.push_back({text, part.tensors});
  }
  return parts;
}

void log_transfer(const TransferReport& report, const TransferRanks& ranks, const std::string& when) {
  const double megabytes = static_cast<double>(report.bytes) / 1e6;
  log::info(concat("elastic training: this member got ", megabytes, " MB of state from ", report.givers, " of ",
                   ranks.givers.size(), " members in ", report.seconds, " s (", megabytes / report.seconds, " MB/s)",
                   when.empty() ? "" : " ", when));
}

StateSource source_of(const TrainingState& state) {
  return {.tensors = state.tensors(), .rest_parts = state.rest_parts(), .save_rest = [&state] {
            return state.save_rest();
          }};
}

StateSource taker_of(const TrainingState& state) {
  const c10::NoGradGuard no_grad;
  return {.tensors = copies_of(state.tensors()),
          .rest_parts = state.rest_parts(),
          .save_rest = nullptr,
          .takes_in_place = true};
}

void take_over(TrainingState& state, const StateParcel& parcel, std::int64_t hash) {
  const c10::NoGradGuard no_grad;
  const std::vector<at::Tensor> tensors = state.tensors();
  for (std::size_t i = 0; i < tensors.size(); ++i) tensors[i].detach().copy_(parcel.tensors[i]);
  state.load_rest(parcel.arrived_rest());
  if (state.hash() != hash)
    throw InternalError("elastic training: the state arrived with other bits than it was sent with");
}

StateParcel transfer_state(ProcessGroup& group, const StateSource& state, const TransferRanks& ranks,
                           TransferReport* report, YieldingSender* sender) {
  const c10::NoGradGuard no_grad;
  const bool gives = contains(ranks.givers, group.rank());
  std::vector<at::Tensor> tensors = dense_tensors(state, gives);
  std::vector<Row> rows;
  for (const at::Tensor& tensor : tensors) rows.push_back({bytes_of(tensor)});
  const Rest rest(group, state, ranks);
  rows.insert(rows.end(), rest.rows().begin(), rest.rows().end());
  const TransferReport passed =
      ranks.givers.size() == 1 ? broadcast_all(group, ranks, rows) : pass_in_pieces(group, ranks, rows, sender);
  if (gives) return {};
  if (report != nullptr) *report = passed;
  return {.tensors = std::move(tensors), .rest = rest.parts()};
}

void send_in_pieces(ProcessGroup& group, const at::Tensor& bytes, int rank, YieldingSender& sender,
                    const std::function<void()>& sent) {
  for_each_piece(bytes, [&](const at::Tensor& piece) {
    sender.send([&] { group.send({piece}, rank)->wait(); });
    sent();
  });
}

void recv_in_pieces(ProcessGroup& group, const at::Tensor& bytes, int rank) {
  UnderWay messages;
  for_each_piece(bytes, [&](const at::Tensor& piece) {
    messages.make_room();
    messages.add(group.recv({piece}, rank));
  });
  messages.finish();
}

}  // namespace gradwire::internal
