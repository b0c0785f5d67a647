// CPUs for ranks: the rules of torchrun's --numa-binding on machines that hwloc describes.
#include "bellows/launch/binding.h"

#include <cstdlib>
#include <fstream>
#include <gmock/gmock.h>

#include <gtest/gtest.h>

#include "bellows/core/error.h"

namespace bellows::launch {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> lists(const std::string& machine, Binding binding,
                               const std::vector<int>& nodes) {
  std::vector<std::string> texts;
  for (const auto& cpus : divide_cpus(synthetic_cpus(machine), binding, nodes)) {
    texts.push_back(cpu_list(cpus));
  }
  return texts;
}

/// Two packages of two NUMA nodes, each with two caches of two cores of two CPUs: 32 CPUs.
constexpr const char* kLarge = "package:2 numa:2 l3:2 core:2 pu:2";

TEST(BindingTest, NodeIsTheWholeNode) {
  EXPECT_THAT(lists(kLarge, Binding::node, {0, 3, 0}), ElementsAre("0-7", "24-31", "0-7"));
}

TEST(BindingTest, SocketIsAllNodesOfThePackage) {
  EXPECT_THAT(lists(kLarge, Binding::socket, {1, 2}), ElementsAre("0-15", "16-31"));
}

TEST(BindingTest, ExclusiveSharesWholeCoresOfTheNodeTheFirstGetMore) {
  EXPECT_THAT(lists(kLarge, Binding::exclusive, {0, 0, 1, 0}),
              ElementsAre("0-3", "4-5", "8-15", "6-7"));
  // CPUs of one core need not be neighbours.
  EXPECT_THAT(lists("core:4 pu:2(indexes=core:pu)", Binding::exclusive, {0, 0}),
              ElementsAre("0-1,4-5", "2-3,6-7"));
}

TEST(BindingTest, CoreComplexesAreTakenByTurns) {
  EXPECT_THAT(lists(kLarge, Binding::core_complex, {0, 0, 0, 2}),
              ElementsAre("0-3", "4-7", "0-3", "16-19"));
}

TEST(BindingTest, CacheWithMoreUsableCpusComesFirst) {
  auto cpus = synthetic_cpus("l3:2 core:4 pu:1");
  std::erase_if(cpus, [](const Cpu& cpu) { return cpu.number == 0; });  // not ours
  const auto shares = divide_cpus(cpus, Binding::core_complex, {0, 0});
  EXPECT_EQ(cpu_list(shares[0]), "4-7");
  EXPECT_EQ(cpu_list(shares[1]), "1-3");
}

TEST(BindingTest, CoreGivesEachRankCoresOfItsOwn) {
  EXPECT_THAT(lists("package:2 core:3 pu:2", Binding::core, {0, 0, 0, 0}),
              ElementsAre("0-3", "4-7", "8-9", "10-11"));
}

TEST(BindingTest, FewerCoresThanRanksAndANodeWithoutCpusAreErrors) {
  const auto error = [](const std::string& machine, Binding binding, std::vector<int> nodes) {
    try {
      lists(machine, binding, nodes);
    } catch (const EnvironmentError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(error("core:2 pu:2", Binding::core, {0, 0, 0}), HasSubstr("2 usable"));
  EXPECT_THAT(error(kLarge, Binding::exclusive, {1, 1, 1, 1, 1}), HasSubstr("NUMA node 1 has 4"));
  EXPECT_THAT(error(kLarge, Binding::node, {7}), HasSubstr("NUMA node 7"));
}

TEST(BindingTest, AnXmlOfAnotherMachineIsRead) {
  const std::string file = ::testing::TempDir() + "machine.xml";
  std::ofstream(file) << R"(<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="2.0">
  <object type="Machine" os_index="0" cpuset="0x0000000f" complete_cpuset="0x0000000f"
          allowed_cpuset="0x0000000f" nodeset="0x00000005" complete_nodeset="0x00000005" allowed_nodeset="0x00000005" gp_index="1">
    <object type="Package" os_index="0" cpuset="0x00000003" complete_cpuset="0x00000003" nodeset="0x00000001" complete_nodeset="0x00000001" gp_index="2">
      <object type="NUMANode" os_index="0" cpuset="0x00000003" complete_cpuset="0x00000003" nodeset="0x00000001" complete_nodeset="0x00000001" gp_index="3" local_memory="1"/>
      <object type="PU" os_index="0" cpuset="0x00000001" complete_cpuset="0x00000001" nodeset="0x00000001" complete_nodeset="0x00000001" gp_index="4"/>
      <object type="PU" os_index="1" cpuset="0x00000002" complete_cpuset="0x00000002" nodeset="0x00000001" complete_nodeset="0x00000001" gp_index="5"/>
    </object>
    <object type="Package" os_index="1" cpuset="0x0000000c" complete_cpuset="0x0000000c" nodeset="0x00000004" complete_nodeset="0x00000004" gp_index="6">
      <object type="NUMANode" os_index="2" cpuset="0x0000000c" complete_cpuset="0x0000000c" nodeset="0x00000004" complete_nodeset="0x00000004" gp_index="7" local_memory="1"/>
      <object type="PU" os_index="2" cpuset="0x00000004" complete_cpuset="0x00000004" nodeset="0x00000004" complete_nodeset="0x00000004" gp_index="8"/>
      <object type="PU" os_index="3" cpuset="0x00000008" complete_cpuset="0x00000008" nodeset="0x00000004" complete_nodeset="0x00000004" gp_index="9"/>
    </object>
  </object>
</topology>
)";
  const auto shares = divide_cpus(xml_cpus(file), Binding::node, {2, 0});  // the kernel's numbers
  EXPECT_EQ(cpu_list(shares[0]), "2-3");
  EXPECT_EQ(cpu_list(shares[1]), "0-1");
  EXPECT_THROW(xml_cpus("/no/such/file"), ValueError);
  EXPECT_THROW(synthetic_cpus("nonsense"), ValueError);
}

TEST(BindingTest, WithoutBindingNothingIsAsked) {
  EXPECT_TRUE(cpus_of_ranks({}).empty());
}

}  // namespace
}  // namespace bellows::launch
