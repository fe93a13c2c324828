// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The state arrives bit for bit, in pieces from all members that hold it.
#include "gradwire/elastic/state_transfer_internal.h"

#include <gtest/gtest.h>
#include <torch/optim/adam.h>

#include "gradwire/ddp/ddp_test_support.h"
#include "gradwire/ddp/replica_sync_internal.h"
#include "gradwire/elastic/elastic_group.h"

namespace gradwire::state_transfer_test {
namespace {

using namespace gradwire::testing;
using internal::StateParcel;
using internal::TrainingState;
using internal::TransferRanks;
using internal::TransferReport;

// A module whose buffer differs between members, as that of batch normalization does, and with a parameter of another
// order in memory.
struct BufferedImpl : torch::nn::Module {
  BufferedImpl(std::int64_t width, int seed, float value)
      : net(register_module("net", torch::nn::Linear(width, width))),
        twisted(register_parameter("twisted", at::zeros({2, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast))),
        mean(register_buffer("mean", at::full({5}, value))) {
    fill(*this, seed);
  }
  torch::nn::Linear net;
  at::Tensor twisted;
  at::Tensor mean;
};
TORCH_MODULE(Buffered);

struct Holder {
  Holder(std::int64_t width, int seed, float value, std::string rest) : net(width, seed, value) {
    DdpOptions options;
    options.process_group = std::make_shared<ElasticGroup>();
    ddp = std::make_unique<DistributedDataParallel<Buffered>>(net, options);
    state.add(ddp->core());
    state.add(internal::UserState{"rest", [rest] { return StatePart{rest}; },
                                  [this](const StatePart& part) { got = part.text; }});
  }
  Buffered net;
  std::unique_ptr<DistributedDataParallel<Buffered>> ddp;
  TrainingState state;
  std::string got;
};

TransferRanks all_give_to_first(int size) {
  TransferRanks ranks{.givers = {}, .takers = {0}};
  for (int giver = 1; giver < size; ++giver) ranks.givers.push_back(giver);
  return ranks;
}

// Ranks 1 and up of `size` hold the state of seed 2; rank 0 takes. Returns what rank 0 tells of the transfer.
// `rest_of`: the user's state of a rank.
TransferReport transfer(int size, std::int64_t width, const std::function<std::string(int rank)>& rest_of) {
  TransferReport told;
  run_ranks({"threads"}, size, [&](int rank, std::shared_ptr<ProcessGroup> group) {
    const TransferRanks ranks = all_give_to_first(size);
    Holder holder(width, rank == 0 ? 1 : 2, static_cast<float>(rank), rest_of(rank));
    TransferReport report;
    const StateParcel parcel = internal::transfer_state(*group, internal::source_of(holder.state), ranks, &report);
    if (rank != 0) {
      EXPECT_TRUE(parcel.tensors.empty());
      return;
    }
    const Holder expected(width, 2, 1, "");
    const std::vector<at::Tensor> tensors = expected.state.tensors();
    ASSERT_EQ(parcel.tensors.size(), tensors.size());
    for (std::size_t i = 0; i < tensors.size(); ++i)
      EXPECT_TRUE(parcel.tensors[i].equal(tensors[i].detach())) << "tensor " << i << " of " << size << " ranks";
    holder.state.load_rest(parcel.arrived_rest());
    EXPECT_EQ(holder.got, rest_of(1));
    told = report;
  });
  return told;
}

TEST(StateTransferTest, TheStateArrivesInPiecesFromAllThatHoldIt) {
  const std::string rest(9'000'001, 'r');
  const auto same_rest = [&](int) { return rest; };
  // A matrix of two pieces.
  for (const int size : {2, 3, 4}) {
    const TransferReport report = transfer(size, 1200, same_rest);
    EXPECT_EQ(report.givers, size - 1);
    EXPECT_GT(report.bytes, 1200 * 1200 * 4 + 9'000'001);
  }
}

// A giver that writes the rest in another way, with the same meaning, gives only the pieces that are as those of the
// first one; so do givers whose rest has another length.
TEST(StateTransferTest, TheRestComesAsTheFirstOfItsHoldersWritesIt) {
  for (const std::size_t longer : {0, 1}) {
    const TransferReport report = transfer(4, 8, [longer](int rank) {
      std::string rest(10'000'000, 'r');
      if (rank == 2) rest[7'000'000] = 'x';
      if (rank == 3) rest.resize(rest.size() + longer);
      return rest;
    });
    EXPECT_GE(report.givers, 2);
  }
}

// A newcomer that has begun with the weights of the job, of which training changed one: it gets that one.
TEST(StateTransferTest, PiecesThatATakerHasAreNotSent) {
  for (const int size : {2, 3}) {
    run_ranks({"threads"}, size, [&](int rank, std::shared_ptr<ProcessGroup> group) {
      const TransferRanks ranks = all_give_to_first(size);
      Holder holder(1200, 2, 1, "the rest");
      const torch::NoGradGuard no_grad;
      if (rank != 0) holder.net->twisted.fill_(5);
      TransferReport report;
      const StateParcel parcel = internal::transfer_state(*group, internal::source_of(holder.state), ranks, &report);
      if (rank != 0) return;
      const auto changed = static_cast<std::int64_t>(holder.net->twisted.nbytes());
      EXPECT_EQ(report.bytes, changed + static_cast<std::int64_t>(parcel.arrived_rest().front().text.size()));
      holder.net->twisted.fill_(5);
      for (std::size_t i = 0; i < parcel.tensors.size(); ++i)
        EXPECT_TRUE(parcel.tensors[i].equal(holder.state.tensors()[i].detach())) << "tensor " << i;
    });
  }
}

// Tensors of a user's state, of many dtypes and sizes.
std::vector<at::Tensor> many_tensors(int seed) {
  const at::Tensor values = random_tensor({600, 1000}, seed);
  return {values,
          values.t(),
          values.to(at::kHalf).narrow(0, 3, 5),
          at::full({}, seed, at::kLong),
          at::empty({0, 4}),
          values.gt(0),
          values.to(at::kBFloat16).view({2, 3, 100, 1000})};
}

void expect_equal_tensors(const std::vector<at::Tensor>& actual, const std::vector<at::Tensor>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(actual[i].scalar_type(), expected[i].scalar_type()) << "tensor " << i;
    EXPECT_TRUE(actual[i].equal(expected[i])) << "tensor " << i;
  }
}

// Of a user's state with tensors, and of Adam: the first two givers hold the same, and the third one writes both in
// another way, with other tensors. What the third one has in common with the first one it gives too.
TEST(StateTransferTest, TensorsOfTheRestArriveWithTheirDtypesAndSizes) {
  for (const int size : {2, 3, 4}) {
    run_ranks({"threads"}, size, [&](int rank, std::shared_ptr<ProcessGroup> group) {
      const TransferRanks ranks = all_give_to_first(size);
      Holder holder(300, rank == 0 ? 1 : 2, 1, "text");
      torch::optim::Adam adam(holder.ddp->parameters(), 0.01);
      if (rank != 0) {
        for (const at::Tensor& parameter : holder.ddp->parameters())
          parameter.mutable_grad() = at::ones_like(parameter);
        adam.step();
      }
      holder.state.add(adam);
      std::vector<at::Tensor> tensors = many_tensors(rank == 0 ? 8 : 9);
      if (rank == 3) tensors.pop_back();
      StatePart got;
      holder.state.add(internal::UserState{"tensors",
                                           [&] {
                                             return StatePart{"its text", tensors};
                                           },
                                           [&](StatePart part) { got = std::move(part); }});
      const StateParcel parcel = internal::transfer_state(*group, internal::source_of(holder.state), ranks);
      expect_equal_tensors(tensors, rank == 3 ? tensors : many_tensors(rank == 0 ? 8 : 9));
      if (rank != 0) return;
      holder.state.load_rest(parcel.arrived_rest());
      EXPECT_EQ(got.text, "its text");
      expect_equal_tensors(got.tensors, many_tensors(9));
      for (const auto& [key, state] : adam.state()) {
        const auto& of_adam = static_cast<const torch::optim::AdamParamState&>(*state);
        EXPECT_EQ(of_adam.step(), 1);
        EXPECT_TRUE(of_adam.exp_avg().eq(0.1F).all().item<bool>()) << of_adam.exp_avg();
      }
      EXPECT_EQ(adam.state().size(), holder.ddp->parameters().size());
    });
  }
}

TEST(StateTransferTest, ATensorWithoutPlainValuesIsRefused) {
  const at::Tensor values = at::ones({2, 2});
  for (const at::Tensor& tensor : {at::Tensor(), at::empty({2}, at::kMeta), values.to_sparse(),
                                   at::quantize_per_tensor(values, 0.1, 0, at::kQInt8)}) {
    Holder holder(8, 1, 0, "");
    holder.state.add(internal::UserState{"odd", [&] { return StatePart{"", {tensor}}; }, [](const StatePart&) {}});
    EXPECT_NE(error_of([&] { holder.state.save_rest(); }).find("the state 'odd' gave a tensor that is undefined"),
              std::string::npos);
  }
}

TEST(StateTransferTest, SeveralMembersTakeAtOnce) {
  run_ranks({"threads"}, 5, [&](int rank, std::shared_ptr<ProcessGroup> group) {
    const TransferRanks ranks{.givers = {0, 3}, .takers = {1, 2, 4}};
    const bool gives = rank == 0 || rank == 3;
    Holder holder(1200, gives ? 2 : 1, 7, gives ? "the rest" : "");
    const StateParcel parcel = internal::transfer_state(*group, internal::source_of(holder.state), ranks);
    if (gives) return;
    const Holder expected(1200, 2, 7, "");
    for (std::size_t i = 0; i < parcel.tensors.size(); ++i)
      EXPECT_TRUE(parcel.tensors[i].equal(expected.state.tensors()[i].detach())) << rank;
    holder.state.load_rest(parcel.arrived_rest());
    EXPECT_EQ(holder.got, "the rest");
  });
}

// A newcomer that follows does steps while the state is on its way.
TEST(StateTransferTest, ATakerMayChangeItsStateMeanwhile) {
  for (const int size : {2, 3}) {
    run_ranks({"threads"}, size, [&](int rank, std::shared_ptr<ProcessGroup> group) {
      const TransferRanks ranks = all_give_to_first(size);
      Holder holder(300, 2, 1, "the rest");
      const torch::NoGradGuard no_grad;
      if (rank != 0) holder.net->twisted.fill_(5);
      const internal::StateSource source =
          rank == 0 ? internal::taker_of(holder.state) : internal::source_of(holder.state);
      if (rank == 0) {
        for (at::Tensor& parameter : holder.net->parameters()) parameter.fill_(9);
      }
      const StateParcel parcel = internal::transfer_state(*group, source, ranks);
      if (rank != 0) return;
      Holder expected(300, 2, 1, "");
      expected.net->twisted.fill_(5);
      for (std::size_t i = 0; i < parcel.tensors.size(); ++i)
        EXPECT_TRUE(parcel.tensors[i].equal(expected.state.tensors()[i].detach())) << "tensor " << i;
      for (const at::Tensor& parameter : holder.net->parameters()) EXPECT_TRUE(parameter.eq(9).all().item<bool>());
    });
  }
}

// A giver that is lost in the middle ends the transfer with an error of the group, and nothing has changed.
TEST(StateTransferTest, AGiverThatIsLostEndsTheTransfer) {
  run_ranks({"threads"}, 3, [&](int rank, std::shared_ptr<ProcessGroup> group) {
    const TransferRanks ranks{.givers = {1, 2}, .takers = {0}};
    Holder holder(1200, rank == 0 ? 1 : 2, 0, "the rest");
    if (rank == 2) {
      (void)internal::gather_integers(*group, {8});  // it says how long its rest is, and no more
      group->abort("this giver is lost on purpose");
      return;
    }
    const std::string error =
        error_of([&] { internal::transfer_state(*group, internal::source_of(holder.state), ranks); });
    if (rank == 0) {
      EXPECT_NE(error.find("lost on purpose"), std::string::npos) << error;
    }
    EXPECT_EQ(holder.state.hash(), Holder(1200, rank == 0 ? 1 : 2, 0, "").state.hash());
  });
}

}  // namespace
}  // namespace gradwire::state_transfer_test
