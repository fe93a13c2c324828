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

constexpr std::int64_t kPieceBytes = std::int64_t{4} << 20;
// How many messages a rank has under way: enough to keep the links of several givers busy.
constexpr std::size_t kUnderWay = 8;

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

// Messages between givers and takers, in an order in which no two of them wait for each other: every rank goes through
// the same list of pieces.
class Messages {
 public:
  Messages(ProcessGroup& group, const TransferRanks& ranks) : group_(group), ranks_(ranks) {}

  // Piece `number` goes to each taker that lacks it, from one of the givers that have it.
  void pass(const at::Tensor& piece, std::size_t number, const Inventory& inventory) {
    const std::vector<int> givers = inventory.givers_of(number);
    for (std::size_t i = 0; i < ranks_.takers.size(); ++i) {
      const int taker = ranks_.takers[i];
      if (!inventory.has(taker, number)) pass_to(piece, givers[(number + i) % givers.size()], taker);
    }
  }
  // Waits until all messages of this rank have arrived.
  void finish() {
    while (!under_way_.empty()) wait_for_first();
  }
  std::int64_t received() const noexcept { return received_; }
  // From how many givers this rank has got pieces.
  int givers() const noexcept { return static_cast<int>(heard_.size()); }

 private:
  void pass_to(const at::Tensor& piece, int giver, int taker) {
    if (group_.rank() == giver) add(group_.send({piece}, taker));
    if (group_.rank() != taker) return;
    heard_.insert(giver);
    received_ += piece.numel();
    add(group_.recv({piece}, giver));
  }
  void add(std::shared_ptr<Work> work) {
    if (under_way_.size() >= kUnderWay) wait_for_first();
    under_way_.push_back(std::move(work));
  }
  void wait_for_first() {
    const std::shared_ptr<Work> first = std::move(under_way_.front());
    under_way_.pop_front();
    first->wait();
  }

  ProcessGroup& group_;
  const TransferRanks& ranks_;
  std::deque<std::shared_ptr<Work>> under_way_;
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

// The parts of the rest: a giver's own, and memory of the right size on a taker. Collective.
std::vector<Row> rest_rows(ProcessGroup& group, const StateSource& state, const TransferRanks& ranks) {
  const std::size_t count = state.rest_parts;
  if (count == 0) return {};
  std::vector<Row> rows;
  std::vector<std::int64_t> sizes(count, -1);
  if (contains(ranks.givers, group.rank())) {
    for (std::string& part : state.save_rest()) rows.push_back({tensor_of_text(std::move(part))});
    std::transform(rows.begin(), rows.end(), sizes.begin(), [](const Row& row) { return row.bytes.numel(); });
  }
  rows.resize(count);
  const auto all_sizes = gather_integers(group, sizes);
  for (std::size_t part = 0; part < count; ++part) {
    const std::int64_t size = all_sizes[static_cast<std::size_t>(ranks.givers.front())][part];
    if (sizes[part] != size) rows[part] = {at::empty({size}, at::TensorOptions(at::kByte)), false};
  }
  return rows;
}

// A giver's tensors without gaps in their memory, and copies of a taker's own.
std::vector<at::Tensor> dense_tensors(const StateSource& state, bool gives) {
  std::vector<at::Tensor> dense;
  for (const at::Tensor& tensor : state.tensors) {
    dense.push_back(gives ? tensor.detach().contiguous() : tensor.detach().clone(at::MemoryFormat::Contiguous));
  }
  return dense;
}

TransferReport pass_in_pieces(ProcessGroup& group, const TransferRanks& ranks, const std::vector<Row>& rows) {
  const Inventory inventory(group, ranks, rows);
  const Stopwatch stopwatch;
  Messages messages(group, ranks);
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

std::vector<std::string_view> StateParcel::rest_bytes() const {
  std::vector<std::string_view> parts;
  for (const at::Tensor& part : rest)
    parts.emplace_back(static_cast<const char*>(part.const_data_ptr()), static_cast<std::size_t>(part.numel()));
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

void take_over(TrainingState& state, const StateParcel& parcel, std::int64_t hash) {
  const c10::NoGradGuard no_grad;
  const std::vector<at::Tensor> tensors = state.tensors();
  for (std::size_t i = 0; i < tensors.size(); ++i) tensors[i].detach().copy_(parcel.tensors[i]);
  state.load_rest(parcel.rest_bytes());
  if (state.hash() != hash)
    throw InternalError("elastic training: the state arrived with other bits than it was sent with");
}

StateParcel transfer_state(ProcessGroup& group, const StateSource& state, const TransferRanks& ranks,
                           TransferReport* report) {
  const c10::NoGradGuard no_grad;
  const bool gives = contains(ranks.givers, group.rank());
  std::vector<at::Tensor> tensors = dense_tensors(state, gives);
  std::vector<Row> rows;
  for (const at::Tensor& tensor : tensors) rows.push_back({bytes_of(tensor)});
  const std::vector<Row> rest = rest_rows(group, state, ranks);
  rows.insert(rows.end(), rest.begin(), rest.end());
  const TransferReport passed =
      ranks.givers.size() == 1 ? broadcast_all(group, ranks, rows) : pass_in_pieces(group, ranks, rows);
  if (gives) return {};
  if (report != nullptr) *report = passed;
  StateParcel parcel{.tensors = std::move(tensors), .rest = {}};
  for (const Row& row : rest) parcel.rest.push_back(row.bytes);
  return parcel;
}

}  // namespace gradwire::internal
