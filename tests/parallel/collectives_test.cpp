// Each collective on 1 to 4 ranks against what one process computes from all ranks' tensors.
#include <gmock/gmock.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "bellows/core/error.h"
#include "bellows/parallel/group.h"
#include "bellows/parallel/init.h"

namespace bellows::parallel {
namespace {

using ::testing::HasSubstr;
using Tensors = std::vector<at::Tensor>;

/// The tensor that rank `rank` brings: small whole numbers, exact in every type.
at::Tensor brought(int64_t rank, at::IntArrayRef sizes, at::ScalarType type = at::kFloat) {
  int64_t count = 1;
  for (const int64_t size : sizes) count *= size;
  const at::Tensor numbers = (at::arange(count) * (2 * rank + 1) + rank) % 5 + 1;
  if (type == at::kBool) return (numbers > 2).view(sizes);
  return numbers.to(type).view(sizes);
}

Tensors brought_by_all(int64_t ranks, at::IntArrayRef sizes, at::ScalarType type = at::kFloat) {
  Tensors all;
  for (int64_t rank = 0; rank < ranks; ++rank) all.push_back(brought(rank, sizes, type));
  return all;
}

at::Tensor combine(const at::Tensor& a, const at::Tensor& b, ReduceOp op) {
  switch (op) {
    case ReduceOp::product:
      return a * b;
    case ReduceOp::min:
      return at::minimum(a, b);
    case ReduceOp::max:
      return at::maximum(a, b);
    case ReduceOp::bit_and:
      return at::bitwise_and(a, b);
    case ReduceOp::bit_or:
      return at::bitwise_or(a, b);
    case ReduceOp::bit_xor:
      return at::bitwise_xor(a, b);
    default:
      return a + b;
  }
}

at::Tensor reduced(const Tensors& all, ReduceOp op) {
  at::Tensor result = all.front();
  for (size_t i = 1; i < all.size(); ++i) result = combine(result, all[i], op);
  return op == ReduceOp::average ? result / static_cast<int64_t>(all.size()) : result;
}

/// Equal in type, shape and each value; of a thread that is not the test's own.
void expect_equal(const at::Tensor& got, const at::Tensor& expected) {
  ASSERT_EQ(got.scalar_type(), expected.scalar_type());
  EXPECT_EQ(got.sizes(), expected.sizes());
  EXPECT_TRUE(at::equal(got, expected)) << "got " << got << "\nexpected " << expected;
}

class CollectivesTest : public ::testing::TestWithParam<int64_t> {
 protected:
  int64_t ranks() const { return GetParam(); }
  void on_all(const std::function<void(const Group&)>& body) const {
    run_threads(ranks(), body, {.timeout = std::chrono::seconds(30)});
  }
};

const std::vector<at::ScalarType> kTypes = {at::kFloat, at::kDouble, at::kHalf,  at::kBFloat16,
                                            at::kByte,  at::kChar,   at::kShort, at::kInt,
                                            at::kLong,  at::kBool};

TEST_P(CollectivesTest, AllReduceIsTheSumOfAllTypes) {
  on_all([&](const Group& group) {
    for (const auto type : kTypes) {
      const at::Tensor tensor = brought(group.rank(), {3, 5}, type);
      group.all_reduce(tensor);
      expect_equal(tensor, reduced(brought_by_all(ranks(), {3, 5}, type), ReduceOp::sum));
    }
  });
}

TEST_P(CollectivesTest, AllReduceKnowsEveryOperation) {
  on_all([&](const Group& group) {
    for (const auto op : {ReduceOp::product, ReduceOp::min, ReduceOp::max}) {
      for (const auto type : {at::kFloat, at::kBFloat16, at::kInt, at::kShort, at::kBool}) {
        expect_equal(group.all_reduced(brought(group.rank(), {7}, type), op),
                     reduced(brought_by_all(ranks(), {7}, type), op));
      }
    }
    for (const auto op : {ReduceOp::bit_and, ReduceOp::bit_or, ReduceOp::bit_xor}) {
      for (const auto type : {at::kByte, at::kShort, at::kLong, at::kBool}) {
        expect_equal(group.all_reduced(brought(group.rank(), {7}, type), op),
                     reduced(brought_by_all(ranks(), {7}, type), op));
      }
    }
    const at::Tensor average = group.all_reduced(brought(group.rank(), {4}), ReduceOp::average);
    expect_equal(average, reduced(brought_by_all(ranks(), {4}), ReduceOp::average));
  });
}

TEST_P(CollectivesTest, AllReduceOfComplexNumbers) {
  on_all([&](const Group& group) {
    const auto of = [](int64_t rank) {
      return at::complex(brought(rank, {6}), brought(rank + 1, {6}));
    };
    Tensors all;
    for (int64_t rank = 0; rank < ranks(); ++rank) all.push_back(of(rank));
    expect_equal(group.all_reduced(of(group.rank())), reduced(all, ReduceOp::sum));
  });
}

TEST_P(CollectivesTest, TensorsNeedNotBeContiguous) {
  on_all([&](const Group& group) {
    const at::Tensor whole = at::zeros({4, 6});
    const at::Tensor part = whole.t().slice(0, 0, 6, 2);  // [3, 4], strided
    part.copy_(brought(group.rank(), {3, 4}));
    group.all_reduce(part);
    const at::Tensor sum = reduced(brought_by_all(ranks(), {3, 4}), ReduceOp::sum);
    expect_equal(part, sum);
    expect_equal(whole.select(1, 1), at::zeros({4}));  // what lies between is let be
    group.broadcast(part, ranks() - 1);
    expect_equal(part, sum);
    const at::Tensor output = at::zeros({4, 3 * ranks()}).t();
    group.all_gather_into_tensor(output, part);
    expect_equal(output, at::cat(Tensors(static_cast<size_t>(ranks()), sum)));
  });
}

TEST_P(CollectivesTest, EmptyAndSingleElementTensors) {
  on_all([&](const Group& group) {
    const at::Tensor empty = at::empty({0, 3});
    group.all_reduce(empty);
    group.broadcast(empty, 0);
    group.all_gather_into_tensor(at::empty({0, 3}), empty);
    group.all_to_all_single(at::empty({0}), at::empty({0}));
    expect_equal(group.all_gathered(empty), at::empty({ranks(), 0, 3}));
    expect_equal(group.all_reduced(at::scalar_tensor(1.5)), at::scalar_tensor(1.5 * ranks()));
  });
}

TEST_P(CollectivesTest, ParametersThatRequireGradientsAreReducedInPlace) {
  on_all([&](const Group& group) {
    at::Tensor parameter = brought(group.rank(), {3}).requires_grad_(true);
    group.all_reduce(parameter);
    expect_equal(parameter.detach(), reduced(brought_by_all(ranks(), {3}), ReduceOp::sum));
    EXPECT_TRUE(parameter.is_leaf());
  });
}

TEST_P(CollectivesTest, BroadcastGivesTheSourcesValuesOfAnyType) {
  on_all([&](const Group& group) {
    for (int64_t src = 0; src < ranks(); ++src) {
      for (const auto type :
           {at::kFloat, at::kBool, at::kShort, at::kComplexFloat, at::kFloat8_e4m3fn}) {
        const at::Tensor expected = brought(src, {2, 3}).to(type);
        const at::Tensor tensor =
            group.rank() == src ? expected.clone() : at::zeros({2, 3}).to(type);
        group.broadcast(tensor, src);
        expect_equal(tensor.view(at::kByte), expected.view(at::kByte));
      }
    }
  });
}

TEST_P(CollectivesTest, ReduceGivesTheDestinationTheSum) {
  on_all([&](const Group& group) {
    for (int64_t dst = 0; dst < ranks(); ++dst) {
      const at::Tensor tensor = brought(group.rank(), {4}, at::kDouble);
      group.reduce(tensor, dst);
      if (group.rank() == dst) {
        expect_equal(tensor, reduced(brought_by_all(ranks(), {4}, at::kDouble), ReduceOp::sum));
      }
    }
  });
}

TEST_P(CollectivesTest, GatheringAndScattering) {
  on_all([&](const Group& group) {
    const Tensors all = brought_by_all(ranks(), {2, 2}, at::kHalf);
    const at::Tensor& own = all[static_cast<size_t>(group.rank())];
    Tensors outputs;
    for (int64_t i = 0; i < ranks(); ++i) outputs.push_back(at::zeros({2, 2}, at::kHalf));
    group.all_gather(outputs, own);
    for (size_t i = 0; i < all.size(); ++i) expect_equal(outputs[i], all[i]);
    expect_equal(group.all_gathered(own), at::stack(all));
    for (int64_t root = 0; root < ranks(); ++root) {
      const bool is_root = group.rank() == root;
      for (auto& output : outputs) output.zero_();
      group.gather(own, is_root ? outputs : Tensors(), root);
      if (is_root) expect_equal(at::stack(outputs), at::stack(all));
      const at::Tensor output = at::zeros({2, 2}, at::kHalf);
      group.scatter(output, is_root ? all : Tensors(), root);
      expect_equal(output, own);
    }
  });
}

TEST_P(CollectivesTest, ReduceScatterGivesEachRankItsPart) {
  on_all([&](const Group& group) {
    for (const auto op : {ReduceOp::sum, ReduceOp::max, ReduceOp::average}) {
      const at::Tensor sum = reduced(brought_by_all(ranks(), {2 * ranks(), 3}), op);
      const at::Tensor input = brought(group.rank(), {2 * ranks(), 3});
      const at::Tensor expected = sum.narrow(0, 2 * group.rank(), 2);
      const at::Tensor output = at::zeros({2, 3});
      group.reduce_scatter_tensor(output, input, op);
      expect_equal(output, expected);
      output.zero_();
      group.reduce_scatter(output, input.chunk(ranks()), op);
      expect_equal(output, expected);
    }
  });
}

TEST_P(CollectivesTest, AllToAllExchangesParts) {
  on_all([&](const Group& group) {
    const int64_t n = ranks(), own = group.rank();
    const at::Tensor output = at::zeros({2 * n});
    group.all_to_all_single(output, brought(own, {2 * n}));
    Tensors expected;
    for (int64_t i = 0; i < n; ++i) expected.push_back(brought(i, {2 * n}).narrow(0, 2 * own, 2));
    expect_equal(output, at::cat(expected));
    // To rank i go i rows: also none.
    std::vector<int64_t> to, from(static_cast<size_t>(n), own);
    for (int64_t i = 0; i < n; ++i) to.push_back(i);
    const at::Tensor rows = at::zeros({n * own, 2}, at::kInt);
    group.all_to_all_single(rows, at::full({n * (n - 1) / 2, 2}, own, at::kInt), from, to);
    Tensors parts;
    for (int64_t i = 0; i < n; ++i) parts.push_back(at::full({own, 2}, i, at::kInt));
    expect_equal(rows, at::cat(parts));
    Tensors lists, inputs;
    for (int64_t i = 0; i < n; ++i) {
      lists.push_back(at::zeros({i + 1}));
      inputs.push_back(at::full({own + 1}, 10.0 * own + i));
    }
    group.all_to_all(lists, inputs);
    for (int64_t i = 0; i < n; ++i) {
      expect_equal(lists[static_cast<size_t>(i)], at::full({i + 1}, 10.0 * i + own));
    }
  });
}

TEST_P(CollectivesTest, MessagesGoAround) {
  if (ranks() == 1) return;
  on_all([&](const Group& group) {
    const int64_t next = (group.rank() + 1) % ranks(),
                  before = (group.rank() + ranks() - 1) % ranks();
    const at::Tensor received = at::zeros({3}, at::kLong);
    const Work sent = group.async().send(brought(group.rank(), {3}, at::kLong), next, 4);
    EXPECT_EQ(group.recv(received, before, 4), before);
    sent.wait();
    expect_equal(received, brought(before, {3}, at::kLong));
    group.barrier();
    if (group.rank() != 0) {
      group.send(at::full({1}, group.rank()), 0, 9);
    } else {
      int64_t sum = 0;
      for (int64_t i = 1; i < ranks(); ++i) {
        const at::Tensor from = at::zeros({1}, at::kLong);
        const int64_t sender = group.recv(from, std::nullopt, 9);
        EXPECT_EQ(from.item<int64_t>(), sender);
        sum += from.item<int64_t>();
      }
      EXPECT_EQ(sum, ranks() * (ranks() - 1) / 2);
    }
  });
}

TEST_P(CollectivesTest, SeveralTensorsAsOne) {
  on_all([&](const Group& group) {
    const Tensors tensors = {brought(group.rank(), {2}), brought(group.rank(), {3, 2}).t(),
                             at::empty({0})};
    group.all_reduce_coalesced(tensors, ReduceOp::average);
    expect_equal(tensors[0], reduced(brought_by_all(ranks(), {2}), ReduceOp::average));
    expect_equal(tensors[1], reduced(brought_by_all(ranks(), {3, 2}), ReduceOp::average).t());
  });
}

TEST_P(CollectivesTest, ObjectsOfAnySize) {
  on_all([&](const Group& group) {
    const auto object = [](int64_t rank) {
      return Tree(Tree::Dict{{"name", std::string(static_cast<size_t>(rank) * 100, 'x')},
                             {"tensor", brought(rank, {rank, 2}, at::kBFloat16)},
                             {"list", Tree::List{rank, 0.1, true, Tree()}}});
    };
    const auto all = group.all_gather_object(object(group.rank()));
    ASSERT_EQ(static_cast<int64_t>(all.size()), ranks());
    for (int64_t rank = 0; rank < ranks(); ++rank) {
      const Tree& one = all[static_cast<size_t>(rank)];
      EXPECT_EQ(one.at("name").string().size(), static_cast<size_t>(rank) * 100);
      expect_equal(one.at("tensor").tensor(), brought(rank, {rank, 2}, at::kBFloat16));
      EXPECT_EQ(one.at("list")[1].number(), 0.1);
    }
    const Tree last = group.broadcast_object(
        group.rank() == ranks() - 1 ? object(group.rank()) : Tree(), ranks() - 1);
    EXPECT_EQ(last.at("list")[0].integer(), ranks() - 1);
  });
}

TEST_P(CollectivesTest, WorksMayBeManyAndAreWaitedForInAnyOrder) {
  on_all([&](const Group& group) {
    Tensors tensors;
    std::vector<Work> works;
    for (int64_t i = 0; i < 20; ++i) {
      tensors.push_back(brought(group.rank() + i, {1000}));
      works.push_back(group.async().all_reduce(tensors.back()));
    }
    for (size_t i = works.size(); i-- > 0;) {
      works[i].wait();
      EXPECT_TRUE(works[i].done());
    }
    for (int64_t i = 0; i < 20; ++i) {
      Tensors all;
      for (int64_t rank = 0; rank < ranks(); ++rank) all.push_back(brought(rank + i, {1000}));
      expect_equal(tensors[static_cast<size_t>(i)], reduced(all, ReduceOp::sum));
    }
  });
}

TEST_P(CollectivesTest, FuturesHoldTheTensors) {
  on_all([&](const Group& group) {
    const at::Tensor tensor = brought(group.rank(), {3});
    const auto future = group.async().all_reduce(tensor, ReduceOp::average).future();
    future->wait();
    const auto values = future->value().toTensorVector();
    ASSERT_EQ(values.size(), 1U);
    expect_equal(values[0], reduced(brought_by_all(ranks(), {3}), ReduceOp::average));
  });
}

TEST_P(CollectivesTest, MistakesAreSeenBeforeAnythingIsSent) {
  on_all([&](const Group& group) {
    const auto refuses = [](const std::function<void()>& act, const std::string& word) {
      try {
        act();
        ADD_FAILURE() << "expected an error with " << word;
      } catch (const ValueError& error) {
        EXPECT_THAT(error.what(), HasSubstr(word));
      }
    };
    const at::Tensor tensor = at::zeros({2});
    refuses([&] { group.broadcast(tensor, ranks()); }, "got rank " + std::to_string(ranks()));
    refuses([&] { group.all_reduce(at::Tensor()); }, "undefined");
    refuses([&] { group.all_reduce(tensor.to_sparse()); }, "sparse");
    refuses([&] { group.all_reduce(at::zeros({2}, at::kInt), ReduceOp::average); },
            "average of int32");
    refuses([&] { group.all_reduce(tensor, ReduceOp::bit_and); }, "bit_and of float32");
    refuses([&] { group.all_reduce(tensor.to(at::kFloat8_e5m2)); }, "cannot be reduced");
    refuses([&] { group.all_gather({}, tensor); }, "got a list of 0");
    refuses([&] { group.all_gather_into_tensor(at::zeros({2 * ranks() + 1}), tensor); },
            "times as many");
    refuses([&] { group.all_to_all_single(tensor, tensor, {5}, {5}); }, "the splits");
    refuses([&] { group.subgroup({}, "x"); }, "no ranks");
    refuses([&] { group.subgroup({0, 0}, "x"); }, "twice");
    refuses([&] { group.subgroup({ranks()}, "x"); }, "got rank");
    group.all_reduce(tensor);  // nothing is out of step
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, CollectivesTest, ::testing::Values(1, 2, 3, 4));

}  // namespace
}  // namespace bellows::parallel
