// SPDX-FileCopyrightText: The gradwire authors
// SPDX-License-Identifier: Apache-2.0
#include "gradwire/functional/functional_test_support.h"

namespace gradwire::testing {
namespace {

using functional::Group;
using All = std::vector<Tensors>;

constexpr int kRoot = 1;  // of worlds that have it, else 0

int root_of(std::size_t size) { return size > 1 ? kRoot : 0; }
int root_of(const Group& group) { return root_of(static_cast<std::size_t>(group->size())); }

// One input a rank.
Tensors column(const All& all, std::size_t which) {
  Tensors tensors;
  for (const Tensors& inputs : all) tensors.push_back(inputs[which]);
  return tensors;
}

at::Tensor reduced(ReduceOp op, const Tensors& values) {
  const at::Tensor stacked = at::stack(values);
  switch (op.kind) {
    case ReduceOp::Kind::avg:
      return stacked.mean(0);
    case ReduceOp::Kind::premul_sum:
      return stacked.sum(0) * op.factor;
    case ReduceOp::Kind::product: {
      at::Tensor product = values[0];
      for (std::size_t i = 1; i < values.size(); ++i) product = product * values[i];
      return product;
    }
    case ReduceOp::Kind::min:
      return stacked.amin(0);
    case ReduceOp::Kind::max:
      return stacked.amax(0);
    default:
      return stacked.sum(0);
  }
}

All on_root(std::size_t size, const Tensors& outputs) {
  All result;
  for (std::size_t rank = 0; rank < size; ++rank) {
    Tensors mine;
    for (const at::Tensor& output : outputs) {
      mine.push_back(static_cast<int>(rank) == root_of(size) ? output : at::zeros_like(output));
    }
    result.push_back(mine);
  }
  return result;
}

std::function<Tensors(int, int, Draw&)> one(std::vector<std::int64_t> sizes, bool coarse = false) {
  return [sizes, coarse](int, int, Draw& draw) { return Tensors{coarse ? draw.coarse(sizes) : draw(sizes)}; };
}

std::function<Tensors(int, int, Draw&)> one_a_rank(std::vector<std::int64_t> sizes, bool coarse = false) {
  return [sizes, coarse](int, int size, Draw& draw) {
    Tensors inputs;
    for (int i = 0; i < size; ++i) inputs.push_back(coarse ? draw.coarse(sizes) : draw(sizes));
    return inputs;
  };
}

void add_reductions(std::vector<Case>& list) {
  const std::vector<ReduceOp> ops = {ReduceOp::sum(),     ReduceOp::avg(), ReduceOp::premul_sum(0.75),
                                     ReduceOp::product(), ReduceOp::min(), ReduceOp::max()};
  for (const ReduceOp op : ops) {
    const bool real_only = op.kind == ReduceOp::Kind::min || op.kind == ReduceOp::Kind::max;
    for (const bool coarse : {false, true}) {
      const std::string tail = concat(" ", name_of(op.kind), coarse ? " of few values" : "");
      list.push_back(
          {"all_reduce" + tail, one({3, 4}, coarse),
           [op](const Tensors& x, const Group& group) { return Tensors{functional::all_reduce(x[0], group, op)}; },
           [op](const All& all) { return All(all.size(), {reduced(op, column(all, 0))}); }, real_only});
      list.push_back({"reduce" + tail, one({5}, coarse),
                      [op](const Tensors& x, const Group& group) {
                        return Tensors{functional::reduce(x[0], root_of(group), group, op)};
                      },
                      [op](const All& all) { return on_root(all.size(), {reduced(op, column(all, 0))}); }, real_only});
      list.push_back(
          {"reduce_scatter" + tail, one_a_rank({2, 3}, coarse),
           [op](const Tensors& x, const Group& group) { return Tensors{functional::reduce_scatter(x, group, op)}; },
           [op](const All& all) {
             All result;
             for (std::size_t rank = 0; rank < all.size(); ++rank) {
               result.push_back({reduced(op, column(all, rank))});
             }
             return result;
           },
           real_only});
    }
  }
}

void add_one_tensor(std::vector<Case>& list, const std::string& tail, const std::vector<std::int64_t>& sizes,
                    const std::function<at::Tensor(const at::Tensor&)>& view) {
  const auto viewed = [view](const All& all) {
    Tensors tensors;
    for (const Tensors& inputs : all) tensors.push_back(view(inputs[0]));
    return tensors;
  };
  list.push_back({"broadcast" + tail, one(sizes),
                  [view](const Tensors& x, const Group& group) {
                    return Tensors{functional::broadcast(view(x[0]), root_of(group), group)};
                  },
                  [viewed](const All& all) {
                    return All(all.size(), {viewed(all)[static_cast<std::size_t>(root_of(all.size()))] * 1});
                  }});
  list.push_back({"all_gather" + tail, one(sizes),
                  [view](const Tensors& x, const Group& group) { return functional::all_gather(view(x[0]), group); },
                  [viewed](const All& all) { return All(all.size(), viewed(all)); }});
  list.push_back(
      {"gather" + tail, one(sizes),
       [view](const Tensors& x, const Group& group) { return functional::gather(view(x[0]), root_of(group), group); },
       [viewed](const All& all) { return on_root(all.size(), viewed(all)); }});
  list.push_back(
      {"all_reduce" + tail, one(sizes),
       [view](const Tensors& x, const Group& group) { return Tensors{functional::all_reduce(view(x[0]), group)}; },
       [viewed](const All& all) { return All(all.size(), {reduced(ReduceOp::sum(), viewed(all))}); }});
}

void add_many_tensors(std::vector<Case>& list) {
  list.push_back(
      {"scatter", one_a_rank({3, 2}),
       [](const Tensors& x, const Group& group) { return Tensors{functional::scatter(x, root_of(group), group)}; },
       [](const All& all) {
         All result;
         for (std::size_t rank = 0; rank < all.size(); ++rank) {
           result.push_back({all[static_cast<std::size_t>(root_of(all.size()))][rank] * 1});
         }
         return result;
       }});
  // From rank r to rank s go s + 2 r rows, so 0 of rank 0 to itself.
  const auto rows = [](int from, int to) { return to + 2 * from; };
  list.push_back({"all_to_all uneven",
                  [rows](int rank, int size, Draw& draw) {
                    Tensors inputs;
                    for (int to = 0; to < size; ++to) inputs.push_back(draw({rows(rank, to), 2}));
                    return inputs;
                  },
                  [rows](const Tensors& x, const Group& group) {
                    std::vector<std::vector<std::int64_t>> sizes;
                    for (int from = 0; from < group->size(); ++from) sizes.push_back({rows(from, group->rank()), 2});
                    return functional::all_to_all(x, group, sizes);
                  },
                  [](const All& all) {
                    All result;
                    for (std::size_t rank = 0; rank < all.size(); ++rank) result.push_back(column(all, rank));
                    return result;
                  }});
  list.push_back({"all_to_all_single uneven",
                  [rows](int rank, int size, Draw& draw) {
                    std::int64_t total = 0;
                    for (int to = 0; to < size; ++to) total += rows(rank, to);
                    return Tensors{draw({total, 3})};
                  },
                  [rows](const Tensors& x, const Group& group) {
                    std::vector<std::int64_t> received, sent;
                    for (int other = 0; other < group->size(); ++other) {
                      received.push_back(rows(other, group->rank()));
                      sent.push_back(rows(group->rank(), other));
                    }
                    return Tensors{functional::all_to_all_single(x[0], group, received, sent)};
                  },
                  [rows](const All& all) {
                    All result;
                    for (std::size_t rank = 0; rank < all.size(); ++rank) {
                      Tensors parts;
                      for (std::size_t from = 0; from < all.size(); ++from) {
                        std::int64_t before = 0;
                        for (std::size_t to = 0; to < rank; ++to)
                          before += rows(static_cast<int>(from), static_cast<int>(to));
                        parts.push_back(
                            all[from][0].narrow(0, before, rows(static_cast<int>(from), static_cast<int>(rank))));
                      }
                      result.push_back({at::cat(parts)});
                    }
                    return result;
                  }});
}

}  // namespace

std::vector<Case> cases() {
  std::vector<Case> list;
  add_reductions(list);
  const auto same = [](const at::Tensor& x) { return x; };
  add_one_tensor(list, "", {4}, same);
  add_one_tensor(list, " transposed", {2, 5}, [](const at::Tensor& x) { return x.t(); });
  add_one_tensor(list, " of nothing", {0, 3}, same);
  add_one_tensor(list, " of a scalar", {}, same);
  add_many_tensors(list);
  return list;
}

}  // namespace gradwire::testing
