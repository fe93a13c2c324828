// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// A group that a user derives, with three collectives alone; the checks that every group gets from its base class; and
// backends that a user adds.
#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <barrier>
#include <thread>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/process_group/backend_names.h"
#include "gradwire/process_group/init.h"
#include "gradwire/process_group/lane_scope.h"
#include "gradwire/process_group/process_group.h"
#include "gradwire/process_group/user_backends.h"
#include "gradwire/store/hash_store.h"

namespace gradwire::user_group_test {
namespace {

// Where the ranks of a UserGroup, which are threads, lay down their tensors.
struct Table {
  explicit Table(int size) : tensors(static_cast<std::size_t>(size)), meet(size) {}
  std::vector<at::Tensor> tensors;
  std::barrier<> meet;
};

class UserGroup final : public ProcessGroup {
 public:
  UserGroup(int rank, int size, std::shared_ptr<Table> table) : ProcessGroup(rank, size), table_(std::move(table)) {}
  int calls = 0;
  CallTag last_tag;
  bool last_async = true;

 protected:
  std::shared_ptr<Work> do_broadcast(Tensors& tensors, const BroadcastOptions& options) override {
    note(options);
    exchange(tensors[0], [&](const std::vector<at::Tensor>& all) {
      tensors[0].copy_(all[static_cast<std::size_t>(options.root)]);
    });
    return completed_work(tensors);
  }
  std::shared_ptr<Work> do_all_reduce(Tensors& tensors, const AllReduceOptions& options) override {
    note(options);
    exchange(tensors[0], [&](const std::vector<at::Tensor>& all) { tensors[0].copy_(at::stack(all).sum(0)); });
    return completed_work(tensors);
  }
  std::shared_ptr<Work> do_all_gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                      const AllGatherOptions& options) override {
    note(options);
    exchange(inputs[0], [&](const std::vector<at::Tensor>& all) {
      for (std::size_t i = 0; i < all.size(); ++i) outputs[0][i].copy_(all[i]);
    });
    return completed_work(outputs[0]);
  }

 private:
  void note(const CollectiveOptions& options) {
    ++calls;
    last_tag = options.tag;
    last_async = options.async;
  }
  template <class Take>
  void exchange(const at::Tensor& mine, const Take& take) {
    table_->tensors[static_cast<std::size_t>(rank())] = mine.clone();
    table_->meet.arrive_and_wait();
    const std::vector<at::Tensor> all = table_->tensors;
    table_->meet.arrive_and_wait();
    take(all);
  }
  std::shared_ptr<Table> table_;
};

// Runs `body` on `size` threads, each with its group.
void on_user_ranks(int size, const std::function<void(UserGroup& group)>& body) {
  auto table = std::make_shared<Table>(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      const auto group = std::make_shared<UserGroup>(rank, size, table);
      try {
        body(*group);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

std::shared_ptr<UserGroup> single() { return std::make_shared<UserGroup>(0, 1, std::make_shared<Table>(1)); }

// The message of the E that `call` throws.
template <class E, class Call>
std::string message_of(const Call& call) {
  try {
    call();
  } catch (const E& error) {
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another exception: " << error.what();
    return "";
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(UserGroup, ThreeCollectivesBringSomeMore) {
  for (const int size : {1, 3}) {
    on_user_ranks(size, [size](UserGroup& group) {
      EXPECT_EQ(group.name(), "user");
      const at::Tensor input = at::full({2, 2}, group.rank(), at::kFloat);
      // Made of all_gather, in order and not.
      at::Tensor whole = at::zeros({size * 2, 2});
      at::Tensor scattered = at::zeros({size * 2, 2, 2}).select(2, 1);
      group.all_gather_into_tensor(whole, input)->wait();
      const auto work = group.all_gather_into_tensor(scattered, input);
      work->wait();
      for (int rank = 0; rank < size; ++rank) {
        EXPECT_TRUE(at::equal(whole.narrow(0, 2 * rank, 2), at::full({2, 2}, rank, at::kFloat)));
      }
      EXPECT_TRUE(at::equal(scattered, whole));
      EXPECT_TRUE(work->result()[0].is_same(scattered));
      // Made of all_reduce.
      group.barrier()->wait();
      EXPECT_EQ(group.calls, 3);
      // There is no more, and no harm in what ends a group.
      EXPECT_EQ(group.dup(), nullptr);
      EXPECT_EQ(group.allocate(5, at::kLong).sum().item<std::int64_t>(), 0);
      EXPECT_TRUE(group.symmetric_memory(group.allocate(5, at::kLong)).empty());
      group.abort("no effect");
      group.shutdown();
    });
  }
}

TEST(UserGroup, ReducesExpandedTensorsThroughCopies) {
  on_user_ranks(3, [](UserGroup& group) {
    const at::Tensor memory = at::full({1, 2}, group.rank() + 1, at::kFloat);
    const at::Tensor expanded = memory.expand({4, 2});
    const auto work = group.all_reduce({expanded});
    work->wait();
    EXPECT_TRUE(at::equal(memory, at::full({1, 2}, 6, at::kFloat))) << memory;
    EXPECT_TRUE(work->result()[0].is_same(expanded));
  });
}

// The root only reads its tensor.
TEST(UserGroup, BroadcastsExpandedTensorsThroughCopies) {
  on_user_ranks(3, [](UserGroup& group) {
    const at::Tensor memory = at::full({1, 2}, group.rank() + 1, at::kFloat);
    BroadcastOptions from_one;
    from_one.root = 1;
    group.broadcast({memory.expand({4, 2})}, from_one)->wait();
    EXPECT_TRUE(at::equal(memory, at::full({1, 2}, 2, at::kFloat))) << memory;
  });
}

TEST(UserGroup, WhatIsNotOverriddenSaysWhichGroupAndWhat) {
  const auto group = single();
  group->set_group_name("mine");
  group->set_group_desc("for a test");
  EXPECT_EQ(group->group_desc(), "for a test");
  at::Tensor tensor = at::ones({2});
  const std::string message = message_of<UnsupportedError>([&] { group->reduce({tensor}); });
  EXPECT_TRUE(has(message, "mine") && has(message, "reduce") && has(message, "user")) << message;
  EXPECT_THROW(group->gather({{tensor}}, {tensor}), UnsupportedError);
  EXPECT_THROW(group->scatter({tensor}, {{tensor}}), UnsupportedError);
  EXPECT_THROW(group->reduce_scatter({tensor}, {{tensor}}), UnsupportedError);
  EXPECT_THROW(group->reduce_scatter_tensor(tensor, at::ones({2})), UnsupportedError);
  EXPECT_THROW(group->all_to_all({tensor}, {tensor}), UnsupportedError);
  EXPECT_THROW(group->all_to_all_single(tensor, at::ones({2})), UnsupportedError);
  EXPECT_THROW(group->recv_anysource({tensor}), UnsupportedError);
  EXPECT_THROW(group->split(0), UnsupportedError);
}

// A method of the user's that forgets its Work.
class ForgetfulGroup final : public ProcessGroup {
 public:
  explicit ForgetfulGroup(int rank) : ProcessGroup(rank, 2) {}

 protected:
  std::shared_ptr<Work> do_all_gather(std::vector<Tensors>&, Tensors&, const AllGatherOptions&) override { return {}; }
  std::shared_ptr<Work> do_all_to_all(Tensors&, Tensors&, const AllToAllOptions&) override { return {}; }
  std::shared_ptr<Work> do_send(Tensors&, int, int) override { return {}; }
  std::shared_ptr<Work> do_recv(Tensors&, int, int) override { return {}; }
};

TEST(UserGroup, AMissingWorkIsNamedAlsoWhereOtherMethodsUseIt) {
  for (const int rank : {0, 1}) {
    ForgetfulGroup group(rank);
    const auto expect_refused = [](const std::string& operation, const auto& call) {
      try {
        call();
        ADD_FAILURE() << operation << " was not refused";
      } catch (const InvalidArgument& error) {
        EXPECT_NE(std::string(error.what()).find(concat(operation, " returned no Work")), std::string::npos)
            << error.what();
      }
    };
    expect_refused("all_gather", [&] { group.all_gather_into_tensor(at::zeros({4}), at::zeros({2})); });
    expect_refused("all_to_all", [&] { group.all_to_all_single(at::zeros({2}), at::zeros({2})); });
    expect_refused(rank == 0 ? "recv" : "send", [&] { group.monitored_barrier(Milliseconds(100)); });
  }
}

TEST(UserGroup, OnALaneItIsToldToRunAtOnceAndGetsTheTag) {
  const auto group = single();
  const std::vector<LaneScope::Route> routes{{group, group}};
  const LaneScope lane(routes, CallTag{4, 2, 0});
  at::Tensor tensor = at::ones({2});
  group->all_reduce({tensor});
  EXPECT_FALSE(group->last_async);
  EXPECT_EQ(group->last_tag, (CallTag{4, 2, 0}));
  group->broadcast({tensor});
  EXPECT_EQ(group->last_tag, (CallTag{4, 2, 1}));
  {
    const LaneScope::Overlap overlap;
    group->all_reduce({tensor});
    EXPECT_TRUE(group->last_async);
    EXPECT_EQ(group->last_tag, (CallTag{4, 2, 2}));
    AllReduceOptions at_once;
    at_once.async = false;
    group->all_reduce({tensor}, at_once);
    EXPECT_FALSE(group->last_async);
  }
  group->all_reduce({tensor});
  EXPECT_FALSE(group->last_async);
  const auto unnamed = single();
  unnamed->set_group_name("stranger");
  const std::string message = message_of<InvalidArgument>([&] { unnamed->all_reduce({tensor}); });
  EXPECT_TRUE(has(message, "stranger")) << message;
  EXPECT_EQ(unnamed->calls, 0);
}

TEST(UserGroup, RankAndSizeAreChecked) {
  EXPECT_THROW(UserGroup(0, 0, nullptr), InvalidArgument);
  EXPECT_THROW(UserGroup(2, 2, nullptr), InvalidArgument);
  EXPECT_THROW(UserGroup(-1, 2, nullptr), InvalidArgument);
  EXPECT_THROW(single()->set_timeout(Milliseconds(0)), InvalidArgument);
}

// Refused before the group itself is called, with rank, group and operation in the message.
template <class Call>
void expect_refused(UserGroup& group, const std::string& part, const Call& call) {
  const int calls = group.calls;
  const std::string message = message_of<InvalidArgument>(call);
  EXPECT_TRUE(has(message, part)) << "'" << part << "' is not in: " << message;
  EXPECT_TRUE(has(message, "rank 0 of group 'g' (user)")) << message;
  EXPECT_EQ(group.calls, calls) << message;
}

TEST(Validation, RefusesTensorsThatCannotBeMoved) {
  const auto group = single();
  group->set_group_name("g");
  const at::Tensor good = at::ones({2, 3});
  expect_refused(*group, "all_reduce: the list of tensors is empty", [&] { group->all_reduce({}); });
  expect_refused(*group, "broadcast: one of the tensors is an undefined tensor", [&] {
    group->broadcast({good, at::Tensor()});
  });
  expect_refused(*group, "to_dense", [&] { group->reduce({good.to_sparse()}); });
  expect_refused(*group, "meta", [&] { group->all_reduce({at::empty({2}, at::TensorOptions(at::kMeta))}); });
  expect_refused(*group, "clone()", [&] { group->all_gather_into_tensor(at::ones({1}).expand({4}), at::ones({4})); });
  AllReduceOptions late;
  late.timeout = Milliseconds(-5);
  expect_refused(*group, "-5 ms", [&] { group->all_reduce({good}, late); });
}

TEST(Validation, RefusesPairsOfOperationAndTypeThatAreNotDefined) {
  const auto group = single();
  group->set_group_name("g");
  AllReduceOptions average;
  average.op = ReduceOp::avg();
  expect_refused(*group, "all_reduce", [&] { group->all_reduce({at::ones({2}, at::kBool)}, average); });
  AllReduceOptions smallest;
  smallest.op = ReduceOp::min();
  expect_refused(*group, "all_reduce", [&] { group->all_reduce({at::ones({2}, at::kComplexFloat)}, smallest); });
  AllReduceOptions bits;
  bits.op = ReduceOp::band();
  expect_refused(*group, "all_reduce", [&] { group->all_reduce({at::ones({2})}, bits); });
}

TEST(Validation, RefusesRootsPeersAndTagsThatAreNotThere) {
  const auto group = single();
  group->set_group_name("g");
  at::Tensor tensor = at::ones({2});
  BroadcastOptions broadcast;
  broadcast.root = 1;
  expect_refused(*group, "the root is 1", [&] { group->broadcast({tensor}, broadcast); });
  broadcast.root = 0;
  broadcast.root_tensor = 1;
  expect_refused(*group, "root_tensor", [&] { group->broadcast({tensor}, broadcast); });
  ReduceOptions reduce;
  reduce.root = -1;
  expect_refused(*group, "reduce: the root is -1", [&] { group->reduce({tensor}, reduce); });
  expect_refused(*group, "the destination is 1", [&] { group->send({tensor}, 1); });
  expect_refused(*group, "this rank itself", [&] { group->send({tensor}, 0); });
  expect_refused(*group, "one at a time", [&] { group->recv_anysource({tensor, tensor}); });
  expect_refused(*group, "the tag is -1", [&] { group->recv_anysource({tensor}, -1); });
}

TEST(Validation, RefusesListsThatDoNotFit) {
  const auto group = single();
  group->set_group_name("g");
  const at::Tensor four = at::ones({4});
  const at::Tensor five = at::ones({5});
  expect_refused(*group, "2 lists of outputs for 1 inputs", [&] { group->all_gather({{four}, {four}}, {four}); });
  expect_refused(*group, "one of the lists of outputs has 2 tensors; it needs one for each of the 1 ranks", [&] {
    group->all_gather({{four, four}}, {four});
  });
  expect_refused(*group, "one of the outputs has 5 elements; it must have 4",
                 [&] { group->all_gather({{five}}, {four}); });
  expect_refused(*group, "one of the outputs is of Double; it must be of Float",
                 [&] { group->all_gather({{four.to(at::kDouble)}}, {four}); });
  expect_refused(*group, "has 5 elements", [&] { group->all_gather_into_tensor(five, four); });
  expect_refused(*group, "has 5 elements", [&] { group->reduce_scatter_tensor(four, five); });
  expect_refused(*group, "1 outputs for 2 inputs", [&] {
    group->all_gather_into_tensor_coalesced({four}, {four, four});
  });
  expect_refused(*group, "2 inputs for 1 outputs", [&] {
    group->reduce_scatter_tensor_coalesced({four}, {four, four});
  });
  expect_refused(*group, "2 outputs for 1 ranks", [&] { group->all_to_all({four, four}, {four}); });
  expect_refused(*group, "add up to 3", [&] { group->all_to_all_single(four, at::ones({4}), {3}, {4}); });
  expect_refused(*group, "2 splits", [&] { group->all_to_all_single(four, at::ones({4}), {2, 2}, {4}); });
  expect_refused(*group, "is -1", [&] { group->all_to_all_single(four, at::ones({4}), {-1}, {4}); });
  expect_refused(*group, "scalar", [&] { group->all_to_all_single(at::ones({}), at::ones({})); });
  expect_refused(*group, "the shape", [&] { group->all_to_all_single(at::ones({4, 2}), at::ones({4, 1})); });
  expect_refused(*group, "number of elements of -1", [&] { group->allocate(-1, at::kFloat); });
}

// A backend whose groups are those of UserGroup, with one rank.
std::shared_ptr<ProcessGroup> lonely(const std::shared_ptr<Store>& store, int /*rank*/, int /*size*/, Milliseconds) {
  store->set("met", "yes");
  return single();
}

InitOptions lonely_options(int world_size = 1) {
  InitOptions options;
  options.backend = "lonely";
  options.store = std::make_shared<HashStore>();
  options.rank = 0;
  options.world_size = world_size;
  options.timeout = std::chrono::seconds(60);
  return options;
}

TEST(UserBackend, ItsGroupsComeFromTheProgram) {
  register_backend("lonely", &lonely);
  EXPECT_EQ(backend_names().back(), "lonely");
  const auto group = init_process_group(lonely_options());
  EXPECT_NE(std::dynamic_pointer_cast<UserGroup>(group), nullptr);
  EXPECT_EQ(group->timeout(), std::chrono::seconds(60));
  const auto part = new_group({0}, "", "", std::chrono::seconds(50));
  EXPECT_NE(std::dynamic_pointer_cast<UserGroup>(part), nullptr);
  EXPECT_NE(part, group);
  EXPECT_EQ(part->timeout(), std::chrono::seconds(50));
  EXPECT_EQ(new_group({0}, "shm")->name(), "shm");
  destroy_process_group();
  EXPECT_FALSE(is_initialized());
}

TEST(UserBackend, TheLastFactoryOfANameCounts) {
  register_backend("lonely",
                   [](const std::shared_ptr<Store>&, int, int, Milliseconds) -> std::shared_ptr<ProcessGroup> {
                     throw InvalidArgument("the first factory");
                   });
  EXPECT_EQ(message_of<InvalidArgument>([] { init_process_group(lonely_options()); }), "the first factory");
  register_backend("lonely", &lonely);
  init_process_group(lonely_options());
  destroy_process_group();
}

TEST(UserBackend, ItsNameAndItsGroupsAreChecked) {
  EXPECT_THROW(register_backend("shm", &lonely), InvalidArgument);
  EXPECT_THROW(register_backend("auto", &lonely), InvalidArgument);
  EXPECT_THROW(register_backend("", &lonely), InvalidArgument);
  EXPECT_THROW(register_backend("null", nullptr), InvalidArgument);
  register_backend("lonely", &lonely);
  const auto store = std::make_shared<HashStore>();
  const auto wrong = message_of<InvalidArgument>([&] { make_process_group("lonely", store, 1, 2); });
  EXPECT_NE(wrong.find("rank 0 of 1 where it was asked for rank 1 of 2"), std::string::npos) << wrong;
  register_backend(
      "nothing", [](const std::shared_ptr<Store>&, int, int, Milliseconds) { return std::shared_ptr<ProcessGroup>(); });
  EXPECT_THROW(make_process_group("nothing", store, 0, 1), InvalidArgument);
}

}  // namespace
}  // namespace gradwire::user_group_test
