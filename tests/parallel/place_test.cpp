// Environments as launchers document them, and spoilt ones.
#include "bellows/parallel/place.h"

#include <gmock/gmock.h>
#include <map>

#include <gtest/gtest.h>

#include "bellows/core/error.h"

namespace bellows::parallel {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

Place place_of(const Variables& variables) {
  return place_from([&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  });
}

Variables with(Variables variables, const Variables& changes) {
  for (const auto& [name, value] : changes) variables[name] = value;
  return variables;
}

std::string refusal(const Variables& variables) {
  try {
    place_of(variables);
  } catch (const ValueError& error) {
    return error.what();
  }
  return "accepted";
}

const Variables kTorchrun = {{"RANK", "3"},
                             {"WORLD_SIZE", "4"},
                             {"LOCAL_RANK", "1"},
                             {"LOCAL_WORLD_SIZE", "2"},
                             {"GROUP_RANK", "1"},
                             {"MASTER_ADDR", "node0"},
                             {"MASTER_PORT", "29401"},
                             {"TORCHELASTIC_RESTART_COUNT", "2"}};
// srun --nodes 2 --ntasks 3, SLURM 22.05.
const Variables kSlurm = {{"SLURM_PROCID", "2"},
                          {"SLURM_NTASKS", "3"},
                          {"SLURM_STEP_NUM_TASKS", "3"},
                          {"SLURM_LOCALID", "0"},
                          {"SLURM_NODEID", "1"},
                          {"SLURM_STEP_ID", "0"},
                          {"SLURM_JOB_ID", "48211"},
                          {"SLURM_STEP_TASKS_PER_NODE", "2,1"},
                          {"SLURM_STEP_NODELIST", "gpu[03-05,9],login1"}};
// mpirun -np 2, Open MPI 4.1.
const Variables kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "1"},
                            {"OMPI_COMM_WORLD_SIZE", "2"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                            {"OMPI_MCA_ess_base_jobid", "2437808129"}};
// mpiexec -n 2 of MPICH 4.0 (Hydra).
const Variables kMpich = {{"PMI_RANK", "1"},
                          {"PMI_SIZE", "2"},
                          {"MPI_LOCALRANKID", "1"},
                          {"MPI_LOCALNRANKS", "2"},
                          {"MASTER_PORT", "29500"}};
const Variables kPod = {{"RANK", "1"},
                        {"WORLD_SIZE", "2"},
                        {"MASTER_ADDR", "job-master-0"},
                        {"MASTER_PORT", "23456"},
                        {"KUBERNETES_SERVICE_HOST", "10.0.0.1"}};

TEST(PlaceTest, WithoutVariablesOneProcess) {
  const Place place = place_of({{"HOME", "/"}});
  EXPECT_EQ(place.world_size, 1);
  EXPECT_EQ(place.source, "nobody");
}

TEST(PlaceTest, Torchrun) {
  const Place place = place_of(kTorchrun);
  EXPECT_EQ(place.source, "torchrun");
  EXPECT_EQ(place.rank, 3);
  EXPECT_EQ(place.world_size, 4);
  EXPECT_EQ(place.local_rank, 1);
  EXPECT_EQ(place.local_world_size, 2);
  EXPECT_EQ(place.node_rank, 1);
  EXPECT_EQ(place.master_addr, "node0");
  EXPECT_EQ(place.master_port, 29401);
  EXPECT_EQ(place.restarts, 2);
}

TEST(PlaceTest, RanksThatMeetOnLoopbackAreOnOneMachine) {
  const Place place = place_of(
      {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "29500"}});
  EXPECT_EQ(place.local_world_size, 2);
  EXPECT_EQ(place.local_rank, 1);
}

TEST(PlaceTest, Slurm) {
  const Place place = place_of(kSlurm);
  EXPECT_EQ(place.source, "SLURM");
  EXPECT_EQ(place.rank, 2);
  EXPECT_EQ(place.world_size, 3);
  EXPECT_EQ(place.local_rank, 0);
  EXPECT_EQ(place.local_world_size, 1);
  EXPECT_EQ(place.node_rank, 1);
  EXPECT_EQ(place.master_addr, "gpu03");
  EXPECT_GE(place.master_port, 20000);
  const Place first = place_of(with(kSlurm, {{"SLURM_PROCID", "0"}, {"SLURM_NODEID", "0"}}));
  EXPECT_EQ(first.local_world_size, 2);
  EXPECT_EQ(first.master_port, place.master_port);
  EXPECT_NE(place_of(with(kSlurm, {{"SLURM_JOB_ID", "48212"}})).master_port, place.master_port);
  const Place many = place_of(with(kSlurm, {{"SLURM_STEP_NUM_TASKS", "13"},
                                            {"SLURM_STEP_TASKS_PER_NODE", "4(x3),1"},
                                            {"SLURM_NODEID", "2"}}));
  EXPECT_EQ(many.local_world_size, 4);
  EXPECT_EQ(place_of(with(kSlurm, {{"SLURM_STEP_NODELIST", "n7"}})).master_addr, "n7");
  EXPECT_EQ(place_of(with(kSlurm, {{"SLURM_STEP_NODELIST", "a1,b[2-3]"}})).master_addr, "a1");
  EXPECT_EQ(place_of(with(kSlurm, {{"SLURM_STEP_NODELIST", "r[1-2]n.x,y"}})).master_addr, "r1n.x");
  EXPECT_EQ(
      place_of(with(kSlurm, {{"MASTER_ADDR", "10.1.1.1"}, {"MASTER_PORT", "29501"}})).master_addr,
      "10.1.1.1");
}

TEST(PlaceTest, ABatchScriptOfSlurmIsNoRank) {
  Variables batch = kSlurm;
  batch.erase("SLURM_STEP_ID");
  batch["SLURM_PROCID"] = "0";
  EXPECT_THAT(refusal(batch), AllOf(HasSubstr("batch script"), HasSubstr("srun")));
}

TEST(PlaceTest, OpenMpi) {
  const Place place = place_of(kOpenMpi);
  EXPECT_EQ(place.source, "Open MPI");
  EXPECT_EQ(place.rank, 1);
  EXPECT_EQ(place.local_world_size, 2);
  EXPECT_EQ(place.master_addr, "127.0.0.1");
  EXPECT_GE(place.master_port, 20000);
  EXPECT_THAT(refusal(with(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "1"},
                                      {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}})),
              AllOf(HasSubstr("MASTER_ADDR"), HasSubstr("mpirun")));
}

TEST(PlaceTest, Mpich) {
  const Place place = place_of(kMpich);
  EXPECT_EQ(place.source, "MPICH");
  EXPECT_EQ(place.local_rank, 1);
  EXPECT_EQ(place.master_port, 29500);
  EXPECT_THAT(refusal(with(kMpich, {{"MASTER_PORT", ""}})),
              AllOf(HasSubstr("MASTER_PORT"), HasSubstr("mpiexec")));
}

TEST(PlaceTest, MpiInsideASlurmAllocationCounts) {
  EXPECT_EQ(place_of(with(kSlurm, kOpenMpi)).source, "Open MPI");
  EXPECT_EQ(place_of(with(kSlurm, kMpich)).source, "MPICH");
  EXPECT_EQ(place_of(with(kSlurm, {{"PMI_RANK", "2"}, {"PMI_SIZE", "3"}})).source, "SLURM");
  EXPECT_EQ(place_of(with(kSlurm, kTorchrun)).source, "torchrun");
}

TEST(PlaceTest, AKubernetesJob) {
  const Place place = place_of(kPod);
  EXPECT_EQ(place.source, "Kubernetes PyTorchJob");
  EXPECT_EQ(place.local_world_size, 1);
  EXPECT_EQ(place.node_rank, 1);
}

TEST(PlaceTest, WhatIsMissingIsNamedWithTheCommandThatSetsIt) {
  for (const std::string name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) {
    EXPECT_THAT(refusal(with(kTorchrun, {{name, ""}})),
                AllOf(HasSubstr("variable " + name), HasSubstr("not set"),
                      HasSubstr("bellows launch --nproc-per-node 2 -- PROGRAM")));
  }
  EXPECT_EQ(place_of({{"RANK", "0"}, {"WORLD_SIZE", "1"}}).world_size, 1);
}

TEST(PlaceTest, WhatIsNoNumberOrContradictsIsNamedWithItsValue) {
  const std::map<std::string, std::string> bad = {{"RANK", "4"},        {"WORLD_SIZE", "two"},
                                                  {"LOCAL_RANK", "2"},  {"LOCAL_WORLD_SIZE", "5"},
                                                  {"MASTER_PORT", "0"}, {"GROUP_RANK", "-1"}};
  for (const auto& [name, value] : bad) {
    EXPECT_THAT(refusal(with(kTorchrun, {{name, value}})),
                HasSubstr("variable " + name + "=" + value));
  }
  EXPECT_THAT(refusal(with(kTorchrun, {{"MASTER_PORT", "70000"}})), HasSubstr("1 to 65535"));
  EXPECT_THAT(refusal(with(kSlurm, {{"SLURM_STEP_TASKS_PER_NODE", "x"}})),
              HasSubstr("SLURM_STEP_TASKS_PER_NODE=x"));
}

TEST(PlaceTest, MoreRanksThanDevicesAreRefused) {
  Place place;
  place.local_world_size = 4;
  check_devices(place, 4);
  try {
    check_devices(place, 2);
    FAIL();
  } catch (const EnvironmentError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("4 ranks"), HasSubstr("2 CUDA devices"),
                                    HasSubstr("--nproc-per-node 2")));
  }
}

}  // namespace
}  // namespace bellows::parallel
