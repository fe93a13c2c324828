// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The requirements of PyTorch's test_c10d_pypg: groups and works of a user's own classes, with DDP over them. And
// mistakes of a user's class.
#include <condition_variable>
#include <mutex>

#include "gradwire/base/error.h"
#include "gradwire/ddp/ddp_test_support.h"
#include "gradwire/hooks/default_hooks.h"

namespace gradwire::testing {
namespace {

struct Asked {
  int waits = 0, futures = 0;
};

// A Work of a user's that counts, or one made of a future, which does not.
std::shared_ptr<Work> work_of(const c10::IValue& result, const c10::TypePtr& type, bool from_future, Asked& asked) {
  struct Counting final : Work {
    Counting(Future future_in, Asked& asked_in) : held(std::move(future_in)), asked(asked_in) {}
    bool wait(Milliseconds) override {
      ++asked.waits;
      return true;
    }
    Future future() override {
      ++asked.futures;
      return held;
    }
    Future held;
    Asked& asked;
  };
  auto future = c10::make_intrusive<c10::ivalue::Future>(type);
  future->markCompleted(result);
  if (from_future) return work_from_future(future);
  return std::make_shared<Counting>(std::move(future), asked);
}

// Of one rank, with three collectives.
class LonelyGroup final : public ProcessGroup {
 public:
  explicit LonelyGroup(bool works_from_futures) : ProcessGroup(0, 1), works_from_futures_(works_from_futures) {}
  Asked asked;

 protected:
  std::string get_backend_name() const override { return "lonely-pg"; }
  std::shared_ptr<Work> do_broadcast(Tensors& tensors, const BroadcastOptions&) override { return list(tensors); }
  std::shared_ptr<Work> do_all_reduce(Tensors& tensors, const AllReduceOptions&) override { return list(tensors); }
  std::shared_ptr<Work> do_all_gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                      const AllGatherOptions&) override {
    for (std::size_t i = 0; i < inputs.size(); ++i) outputs[0][i].copy_(inputs[i]);
    return work_of(c10::IValue(outputs), c10::ListType::create(c10::ListType::ofTensors()), works_from_futures_, asked);
  }

 private:
  std::shared_ptr<Work> list(const Tensors& tensors) {
    return work_of(c10::IValue(tensors), c10::ListType::ofTensors(), works_from_futures_, asked);
  }
  const bool works_from_futures_;
};

struct ReluNetImpl : torch::nn::Module {
  explicit ReluNetImpl(std::int64_t width = 2) : linear(register_module("linear", torch::nn::Linear(width, 2))) {
    fill(*this, 123);
  }
  at::Tensor forward(const at::Tensor& x) { return torch::relu(linear(x)); }
  torch::nn::Linear linear;
};
TORCH_MODULE(ReluNet);

class DdpOverAUsersGroup : public ::testing::TestWithParam<bool> {
 protected:
  static DdpOptions options(const std::shared_ptr<ProcessGroup>& group) {
    DdpOptions options;
    options.process_group = group;
    return options;
  }
};

// test_ddp_invoke_work_object
TEST_P(DdpOverAUsersGroup, AsksItsWorks) {
  const auto group = std::make_shared<LonelyGroup>(GetParam());
  ReluNet net;
  const at::Tensor input = random_tensor({2}, 1);
  DistributedDataParallel ddp(net, options(group));
  ddp(input).sum().backward();
  const at::Tensor gradient = net->linear->bias.grad().clone();
  net->zero_grad();
  net(input).sum().backward();
  EXPECT_TRUE(at::equal(net->linear->bias.grad(), gradient));
  EXPECT_EQ(group->asked.waits > 0, !GetParam());
  EXPECT_EQ(group->asked.futures > 0, !GetParam());
}

// test_ddp_with_pypg and test_ddp_with_pypg_with_grad_views: two iterations of training equal to the local model's.
TEST_P(DdpOverAUsersGroup, TrainsAsTheLocalModel) {
  for (const bool view : {false, true}) {
    const auto group = std::make_shared<LonelyGroup>(GetParam());
    DdpOptions with_views = options(group);
    with_views.gradient_as_bucket_view = view;
    Mlp net, local;
    DistributedDataParallel ddp(net, with_views);
    const auto step = [](auto& model, torch::nn::Module& module, const at::Tensor& input) {
      model.forward(input).square().mean().backward();
      const at::NoGradGuard no_grad;
      for (at::Tensor& parameter : module.parameters()) {
        parameter.sub_(parameter.grad());
        parameter.mutable_grad().zero_();
      }
    };
    for (int iteration = 0; iteration < 2; ++iteration) {
      const at::Tensor input = random_tensor({4, 8}, iteration);
      step(*local, *local, input);
      step(ddp, *net, input);
      expect_close(net->parameters(), local->parameters());
    }
  }
}

// test_ddp_no_init_sync
TEST_P(DdpOverAUsersGroup, MakesNoCallAtConstructionWhenToldSo) {
  const auto group = std::make_shared<LonelyGroup>(GetParam());
  DdpOptions without = options(group);
  without.init_sync = false;
  DistributedDataParallel ddp(ReluNet(), without);
  EXPECT_EQ(group->asked.waits, 0);
  EXPECT_EQ(group->asked.futures, 0);
}

INSTANTIATE_TEST_SUITE_P(Works, DdpOverAUsersGroup, ::testing::Bool(),
                         [](const auto& info) { return std::string(info.param ? "FromFutures" : "Derived"); });

class AttributesGroup final : public ProcessGroup {
 public:
  AttributesGroup() : ProcessGroup(0, 1) {}

 protected:
  int get_rank() const override { return 123; }
  int get_size() const override { return 456; }
  std::string get_backend_name() const override { return "dummy-attr"; }
  void do_set_group_name(const std::string& name) override { name_ = "mine:" + name; }
  std::string get_group_name() const override { return name_; }
  void do_set_group_desc(const std::string& desc) override { desc_ = "mine:" + desc; }
  std::string get_group_desc() const override { return desc_; }

 private:
  std::string name_, desc_;
};

// test_attr_overrides and test_abort_shutdown
TEST(UserDefinedGroup, AttributesAreItsOwnAndItsEndsDoNothing) {
  const auto group = std::make_shared<AttributesGroup>();
  EXPECT_EQ(group->name(), "dummy-attr");
  EXPECT_EQ(group->rank(), 123);
  EXPECT_EQ(group->size(), 456);
  group->set_group_name("name");
  EXPECT_EQ(group->group_name(), "mine:name");
  group->set_group_desc("desc");
  EXPECT_EQ(group->group_desc(), "mine:desc");
  group->abort();
  group->shutdown();
  EXPECT_EQ(group->size(), 456);
}

// The future is all it has; says when somebody has taken it.
class BlockWork final : public Work {
 public:
  struct Taken {
    std::mutex mutex;
    std::condition_variable changed;
    bool taken = false;
    void await() {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return taken; });
    }
  };
  BlockWork(Future future, Taken& taken) : future_(std::move(future)), taken_(taken) {}
  Future future() override {
    Future held = future_;
    // The last that is done with this object: it may go as soon as `taken` is set.
    Taken& taken = taken_;
    const std::lock_guard lock(taken.mutex);
    taken.taken = true;
    taken.changed.notify_all();
    return held;
  }

 private:
  Future future_;
  Taken& taken_;
};

// test_block_current_stream and test_block_current_stream_use_after_free, on a CPU: the caller is held until the future
// is set, whatever became of the Work meanwhile, and of another one.
TEST(UserDefinedWork, BlocksByItsFutureAloneAndMayGoMeanwhile) {
  const Future first = c10::make_intrusive<c10::ivalue::Future>(c10::NoneType::get());
  const Future second = c10::make_intrusive<c10::ivalue::Future>(c10::NoneType::get());
  BlockWork::Taken first_taken, second_taken;
  auto a = std::make_unique<BlockWork>(first, first_taken), b = std::make_unique<BlockWork>(second, second_taken);
  std::atomic<bool> a_done{false};
  std::thread blocked_by_a([&] {
    a->block_current_stream();
    a_done = true;
  });
  std::thread blocked_by_b([&] { b->block_current_stream(); });
  first_taken.await();
  second_taken.await();
  b.reset();
  second->markCompleted();
  blocked_by_b.join();
  EXPECT_FALSE(a_done);
  a.reset();
  first->markCompleted();
  blocked_by_a.join();
  EXPECT_TRUE(a_done);
}

// ---- What such classes may do wrong
// ---------------------------------------------------------------------------------------------------------------------

// Of one rank; each collective does what its maker says.
class WrongGroup final : public ProcessGroup {
 public:
  using Wrong = std::function<std::shared_ptr<Work>(Tensors& tensors)>;
  explicit WrongGroup(Wrong wrong) : ProcessGroup(0, 1), wrong_(std::move(wrong)) {}

 protected:
  std::shared_ptr<Work> do_broadcast(Tensors& tensors, const BroadcastOptions&) override { return wrong_(tensors); }
  std::shared_ptr<Work> do_all_reduce(Tensors& tensors, const AllReduceOptions&) override { return wrong_(tensors); }
  std::shared_ptr<Work> do_all_gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                      const AllGatherOptions&) override {
    outputs[0][0].copy_(inputs[0]);
    return wrong_(outputs[0]);
  }

 private:
  const Wrong wrong_;
};

void expect_refused(const std::string& part, const WrongGroup::Wrong& wrong) {
  const auto group = std::make_shared<WrongGroup>(wrong);
  const at::Tensor four = at::ones({4}), out = at::ones({4});
  for (const std::function<void()>& call :
       std::vector<std::function<void()>>{[&] { group->all_reduce({four}); }, [&] { group->broadcast({four}); },
                                          [&] { group->all_gather({{out}}, {four}); }}) {
    const std::string message = error_of(call);
    EXPECT_NE(message.find(part), std::string::npos) << message;
    EXPECT_NE(message.find("(user)"), std::string::npos) << message;
    four.resize_({4});
    out.resize_({4});
  }
  DdpOptions options;
  options.process_group = group;
  const std::string message = error_of([&] { DistributedDataParallel ddp(Mlp(), options); });
  EXPECT_NE(message.find(part), std::string::npos) << message;
}

TEST(UserDefinedGroup, ThatPutsOtherTensorsInPlaceOfItsOutputsIsRefused) {
  expect_refused("put in its place another one of 7", [](Tensors& tensors) {
    tensors[0] = at::ones({7});
    return completed_work(tensors);
  });
}

TEST(UserDefinedGroup, ThatResizesItsOutputsIsRefused) {
  expect_refused("resized it to 0", [](Tensors& tensors) {
    tensors[0].resize_({0});
    return completed_work(tensors);
  });
}

TEST(UserDefinedGroup, ThatReturnsNoWorkIsRefused) {
  const auto group = std::make_shared<WrongGroup>([](Tensors&) { return nullptr; });
  const std::string message = error_of([&] { group->all_reduce({at::ones({4})}); });
  EXPECT_NE(message.find("all_reduce returned no Work"), std::string::npos) << message;
}

// What a Work's future holds is a hook's business, and DDP's where the hook returns it.
TEST(UserDefinedGroup, WhoseFuturesHoldWrongShapesIsRefusedInAHookByName) {
  const auto group = std::make_shared<WrongGroup>(
      [](Tensors& tensors) { return completed_work({at::ones({tensors[0].numel() + 1})}); });
  DdpOptions options;
  options.process_group = group;
  Mlp net, local;
  {
    DistributedDataParallel ddp(net, options);
    ddp(random_tensor({4, 8}, 1)).sum().backward();
    local->forward(random_tensor({4, 8}, 1)).sum().backward();
    expect_close(gradients_of(*net), gradients_of(*local));
  }
  DistributedDataParallel ddp(net, options);
  ddp.register_comm_hook(make_allreduce_hook());
  const std::string message = error_of([&] { ddp(random_tensor({4, 8}, 1)).sum().backward(); });
  EXPECT_NE(message.find("it must return"), std::string::npos) << message;
}

// A Work that fails: what wait() throws, and the future holds, is what DDP throws, at construction and in backward.
TEST(UserDefinedGroup, WhoseWorksFailIsTheReasonOfDdpsError) {
  for (const int good_calls : {0, 20}) {
    int calls = 0;
    const auto group = std::make_shared<WrongGroup>([&](Tensors& tensors) {
      if (calls++ < good_calls) return completed_work(tensors);
      return failed_work(std::make_exception_ptr(ResourceError("the cable is loose")));
    });
    DdpOptions options;
    options.process_group = group;
    Mlp net;
    const std::string message = error_of([&] {
      DistributedDataParallel ddp(net, options);
      calls = good_calls;
      ddp(random_tensor({4, 8}, 1)).sum().backward();
    });
    EXPECT_NE(message.find("the cable is loose"), std::string::npos) << message;
  }
}

// A Work that never ends: every wait with a timeout ends at the timeout, and the Work may be destroyed afterwards.
TEST(UserDefinedWork, ThatNeverEndsIsWaitedForUntilTheTimeout) {
  const Future never = c10::make_intrusive<c10::ivalue::Future>(c10::NoneType::get());
  BlockWork::Taken taken;
  BlockWork work(never, taken);
  for (int i = 0; i < 2; ++i) EXPECT_THROW(work.wait(Milliseconds(10)), TimeoutError);
  EXPECT_FALSE(work.is_completed());
  EXPECT_THROW(work.result(), InvalidArgument);
}

}  // namespace
}  // namespace gradwire::testing
