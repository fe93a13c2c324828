// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
// The collectives that combine values. Their backward pass has two steps: bring the gradient of the combined value to
// every rank, then take this rank's part of it, which depends on the op alone.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones_like.h>

#include "gradwire/base/error.h"
#include "gradwire/base/strings.h"
#include "gradwire/functional/rule_internal.h"

namespace gradwire::functional {
namespace {

using Kind = ReduceOp::Kind;

bool is_extreme(ReduceOp op) { return op.kind == Kind::min || op.kind == Kind::max; }

class Reduction : public Rule {
 public:
  Reduction(const char* operation, ReduceOp op, Group group) : Rule(operation, std::move(group)), op_(op) {}

  void require_gradient() const override {
    switch (op_.kind) {
      case Kind::sum:
      case Kind::avg:
      case Kind::premul_sum:
      case Kind::product:
      case Kind::min:
      case Kind::max:
        return;
      default:
        throw InvalidArgument(concat(operation(), " with ", name_of(op_.kind), " on rank ", group().rank(),
                                     " has no gradient; detach() its input on all ranks"));
    }
  }
  // No more than part_of() reads: a program may change what is not saved, in place.
  Tensors save(const Tensors& inputs, const Tensors& outputs) const override {
    if (op_.kind != Kind::product && !is_extreme(op_)) return {};
    Tensors all = inputs;
    if (is_extreme(op_)) all.push_back(outputs[0]);
    return all;
  }

 protected:
  ReduceOp op() const { return op_; }

  // Of what save() returned; undefined where part_of() does not read them.
  static at::Tensor own(const Tensors& saved, std::size_t input = 0) {
    return saved.empty() ? at::Tensor() : saved[input];
  }
  at::Tensor output(const Tensors& saved) const { return is_extreme(op_) ? saved.back() : at::Tensor(); }

  // This rank's part of `gradient`, which is the gradient of the reduction `combined` of all ranks' `own`. All ranks
  // call it with the same `gradient` and `combined`; the latter only for min and max, and `own` for product too.
  at::Tensor part_of(const at::Tensor& gradient, const at::Tensor& own, const at::Tensor& combined) const {
    switch (op_.kind) {
      case Kind::avg:
        return gradient / group().size();
      case Kind::premul_sum:
        return gradient * op_.factor;
      case Kind::product:
        return gradient * product_of_others(own).conj();
      case Kind::min:
      case Kind::max: {
        const at::Tensor mine = own.detach(), best = combined.detach();
        const at::Tensor held =
            mine.eq(best).logical_or_(mine.ne(mine).logical_and_(best.ne(best))).to(gradient.scalar_type());
        const at::Tensor holders = held.clone();
        group().all_reduce({holders}, synchronous<AllReduceOptions>())->wait();
        return gradient * (held / holders);
      }
      default:
        return gradient;
    }
  }

 private:
  // Not the product divided by the own value, which may be zero.
  at::Tensor product_of_others(const at::Tensor& own) const {
    const Tensors all = functional::all_gather(own, shared_group());
    at::Tensor product = at::ones_like(own);
    for (int rank = 0; rank < group().size(); ++rank) {
      if (rank != group().rank()) product = product * all[static_cast<std::size_t>(rank)];
    }
    return product;
  }

  ReduceOp op_;
};

class AllReduce : public Reduction {
 public:
  AllReduce(ReduceOp op, Group group) : Reduction("all_reduce", op, std::move(group)) {}
  Tensors forward(const Tensors& inputs) const override {
    at::Tensor tensor = inputs[0].clone(at::MemoryFormat::Contiguous);
    auto options = synchronous<AllReduceOptions>();
    options.op = op();
    group().all_reduce({tensor}, options)->wait();
    return {tensor};
  }
  Tensors backward(const Tensors& saved, const Tensors& gradients) const override {
    // Divided before the sum, as in forward(): the sum alone may be infinite in half precision.
    if (op().kind == Kind::avg) return {functional::all_reduce(gradients[0], shared_group(), op())};
    const at::Tensor gradient = functional::all_reduce(gradients[0], shared_group());
    return {part_of(gradient, own(saved), output(saved))};
  }
};

class Reduce : public Reduction {
 public:
  Reduce(int root, ReduceOp op, Group group) : Reduction("reduce", op, std::move(group)), root_(root) {}
  Tensors forward(const Tensors& inputs) const override {
    at::Tensor tensor = inputs[0].clone(at::MemoryFormat::Contiguous);
    auto options = synchronous<ReduceOptions>();
    options.op = op();
    options.root = root_;
    group().reduce({tensor}, options)->wait();
    if (group().rank() != root_) tensor.zero_();
    return {tensor};
  }
  Tensors backward(const Tensors& saved, const Tensors& gradients) const override {
    const at::Tensor gradient = functional::broadcast(gradients[0], root_, shared_group());
    at::Tensor combined = output(saved);
    if (is_extreme(op())) {
      combined = combined.detach().clone();
      auto options = synchronous<BroadcastOptions>();
      options.root = root_;
      group().broadcast({combined}, options)->wait();
    }
    return {part_of(gradient, own(saved), combined)};
  }

 private:
  int root_;
};

class ReduceScatter : public Reduction {
 public:
  ReduceScatter(ReduceOp op, Group group) : Reduction("reduce_scatter", op, std::move(group)) {}
  Tensors forward(const Tensors& inputs) const override {
    at::Tensor output = at::empty_like(inputs[0], {}, at::MemoryFormat::Contiguous);
    auto options = synchronous<ReduceScatterOptions>();
    options.op = op();
    group().reduce_scatter({output}, {inputs}, options)->wait();
    return {output};
  }
  Tensors backward(const Tensors& saved, const Tensors& gradients) const override {
    const Tensors shared = functional::all_gather(gradients[0], shared_group());
    Tensors combined(shared.size());
    if (is_extreme(op())) {
      const at::Tensor mine = output(saved).detach();
      for (at::Tensor& part : combined) part = at::empty_like(mine);
      group().all_gather({combined}, {mine}, synchronous<AllGatherOptions>())->wait();
    }
    Tensors found;
    for (std::size_t rank = 0; rank < shared.size(); ++rank) {
      found.push_back(part_of(shared[rank], own(saved, rank), combined[rank]));
    }
    return found;
  }
};

}  // namespace

at::Tensor all_reduce(const at::Tensor& tensor, const Group& group, ReduceOp op) {
  require_arguments("all_reduce", group, {tensor});
  return run_rule(c10::make_intrusive<AllReduce>(op, group), {tensor}).front();
}

at::Tensor reduce(const at::Tensor& tensor, int root, const Group& group, ReduceOp op) {
  require_arguments("reduce", group, {tensor});
  require_rank("reduce", *group, "root", root);
  return run_rule(c10::make_intrusive<Reduce>(root, op, group), {tensor}).front();
}

at::Tensor reduce_scatter(const Tensors& inputs, const Group& group, ReduceOp op) {
  require_arguments("reduce_scatter", group, inputs);
  require_one_a_rank("reduce_scatter", *group, inputs, true);
  return run_rule(c10::make_intrusive<ReduceScatter>(op, group), inputs).front();
}

}  // namespace gradwire::functional
