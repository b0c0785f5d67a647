#include "bellows/device/interceptor.h"

#include <gmock/gmock.h>
#include <stdexcept>
#include <thread>

#include <ATen/core/ivalue.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include "bellows/core/text.h"

namespace bellows {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::IsEmpty;
using Names = std::vector<std::string>;

OperatorVisitor collect(Names& names) {
  return [&names](const OperatorCall& call) { names.emplace_back(call.name()); };
}

TEST(InterceptorTest, OperatorsAreSeenOnlyWhileTheGuardLives) {
  Names names;
  const at::Tensor a = at::ones({2});
  a.add(a);
  {
    const InterceptGuard guard(collect(names));
    a.mul(a);
  }
  a.sub(a);
  EXPECT_THAT(names, ElementsAre("aten::mul"));
}

TEST(InterceptorTest, ALayerIsOneCallAndItsArgumentsHaveTheirNames) {
  Names seen;
  const at::Tensor x = at::ones({2, 3});
  const at::Tensor w = at::ones({4, 3});
  const InterceptGuard guard([&](const OperatorCall& call) {
    call.for_each_tensor([&](const std::string& argument, const at::Tensor& tensor) {
      seen.push_back(std::string(call.name()) + " " + argument + (tensor.is_same(w) ? " w" : ""));
    });
  });
  at::linear(x, w);
  EXPECT_THAT(seen, ElementsAre("aten::linear input", "aten::linear weight w"));
}

TEST(InterceptorTest, AHandlerMayTakeTheOperatorsPlaceAndUseAutograd) {
  Names inner;
  const at::Tensor a = at::ones({2}).requires_grad_();
  const InterceptGuard handler(
      OperatorHandler([&](const OperatorCall& call, std::vector<c10::IValue>& stack) {
        if (call.name() != "aten::mul") return false;
        const at::Tensor x = stack[stack.size() - 2].toTensor();
        stack.resize(stack.size() - 2);
        stack.emplace_back(x.sub(5));
        return true;
      }));
  const InterceptGuard visitor(collect(inner));
  const at::Tensor out = a.mul(a);
  EXPECT_EQ(out[0].item<float>(), -4);
  out.sum().backward();
  EXPECT_EQ(a.grad()[0].item<float>(), 1);
  EXPECT_THAT(inner, testing::Not(Contains("aten::mul")));
  EXPECT_THAT(inner, Contains("aten::sum"));
}

TEST(InterceptorTest, ResultsAreSeenWhoeverRanTheOperator) {
  Names seen;
  const at::Tensor a = at::ones({2});
  const InterceptGuard visitor([&](const OperatorCall& call) {
    const std::string name(call.name());
    call.when_done([&seen, name](const std::vector<at::Tensor>& results) {
      for (const at::Tensor& one : results)
        seen.push_back(concat(name, " ", one.numel(), " ", one.sum().item<float>()));
    });
  });
  const InterceptGuard handler(
      OperatorHandler([&](const OperatorCall& call, std::vector<c10::IValue>& stack) {
        if (call.name() != "aten::mul") return false;
        stack.resize(stack.size() - 2);
        stack.emplace_back(at::ones({5}));
        return true;
      }));
  a.add(a);
  a.mul(a);
  a.split(1);
  EXPECT_THROW(a.view({7}), c10::Error);
  EXPECT_THAT(seen,
              ElementsAre("aten::add 2 4", "aten::mul 5 5", "aten::split 1 1", "aten::split 1 1"));
}

TEST(InterceptorTest, ElementsOfListsAreSeen) {
  Names seen;
  const at::Tensor a = at::ones({2});
  const InterceptGuard guard([&](const OperatorCall& call) {
    call.for_each_tensor(
        [&](const std::string& argument, const at::Tensor&) { seen.push_back(argument); });
  });
  at::cat({a, a});
  EXPECT_THAT(seen, ElementsAre("tensors[0]", "tensors[1]"));
}

TEST(InterceptorTest, TheOverloadIsGiven) {
  std::string overload;
  const at::Tensor a = at::ones({2});
  const InterceptGuard guard([&](const OperatorCall& call) { overload = call.overload(); });
  a.add(a);
  EXPECT_EQ(overload, "Tensor");
}

TEST(InterceptorTest, ResultsAndGradientsAreUnchanged) {
  const at::Tensor x = at::ones({2, 3}).requires_grad_();
  const at::Tensor w = at::ones({4, 3});
  int calls = 0;
  {
    const InterceptGuard guard([&](const OperatorCall&) { ++calls; });
    at::linear(x, w).pow(2).sum().backward();
  }
  EXPECT_GT(calls, 3) << "the backward's operators are seen too";
  EXPECT_TRUE(x.grad().eq(24).all().item<bool>());
}

TEST(InterceptorTest, TheVisitorsOwnOperatorsAreNotSeen) {
  Names names;
  const at::Tensor a = at::ones({2});
  {
    const InterceptGuard guard([&](const OperatorCall& call) {
      names.emplace_back(call.name());
      a.add(a);
    });
    a.mul(a);
  }
  EXPECT_THAT(names, ElementsAre("aten::mul"));
}

TEST(InterceptorTest, NestedGuardsAreCalledFromOuterToInner) {
  Names order;
  const at::Tensor a = at::ones({2});
  const InterceptGuard outer([&](const OperatorCall&) { order.emplace_back("outer"); });
  {
    const InterceptGuard inner([&](const OperatorCall&) { order.emplace_back("inner"); });
    a.mul(a);
  }
  a.mul(a);
  EXPECT_THAT(order, ElementsAre("outer", "inner", "outer"));
}

TEST(InterceptorTest, AnErrorOfTheVisitorStopsTheOperatorAndLeavesTheGuardUsable) {
  at::Tensor a = at::ones({2});
  bool refuse = true;
  const InterceptGuard guard([&](const OperatorCall&) {
    if (refuse) throw std::runtime_error("refused");
  });
  EXPECT_THROW(a.add_(1), std::runtime_error);
  refuse = false;
  EXPECT_EQ(a.sum().item<float>(), 2.0F);
}

TEST(InterceptorTest, OtherThreadsAreNotSeen) {
  Names names;
  const at::Tensor a = at::ones({2});
  const InterceptGuard guard(collect(names));
  std::thread([&] { a.mul(a); }).join();
  EXPECT_THAT(names, IsEmpty());
}

TEST(InterceptorTest, InPlaceAndOutResultsAreStillTheCallersTensors) {
  at::Tensor a = at::ones({2});
  const InterceptGuard guard([](const OperatorCall&) {});
  EXPECT_TRUE(a.add_(1).is_same(a));
  EXPECT_EQ(a.sum().item<float>(), 4.0F);
}

}  // namespace
}  // namespace bellows
