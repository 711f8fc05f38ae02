// Tests of the doctor's checks of cores, memory, limits and clock.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "ferry/core/units.h"
#include "tools/testing/fake_system.h"

namespace ferry::tools {
namespace {

using testing::HasSubstr;

// ---- cores --------------------------------------------------------------------------------------

TEST(DoctorCores, AllOfThemAreFine) {
  FakeSystem system;
  const Check check = CheckCores(RunAlone(&system));
  EXPECT_EQ(check.verdict, Verdict::kOk);
  EXPECT_EQ(check.evidence, "8 usable of 8");
}

TEST(DoctorCores, AffinityIsANote) {
  FakeSystem system;
  system.cores = {0, 1};
  const Check check = CheckCores(RunAlone(&system));
  EXPECT_EQ(check.verdict, Verdict::kNote);
  EXPECT_EQ(check.fix, "taskset -pc 0-7 $$");
}

TEST(DoctorCores, OneIsAWarning) {
  FakeSystem system;
  system.cores = {0};
  system.files.erase("/sys/devices/system/cpu/online");
  EXPECT_EQ(CheckCores(RunAlone(&system)).verdict, Verdict::kWarning);
}

TEST(DoctorCores, TheTightestQuotaOfTheGroupsAroundCounts) {
  FakeSystem system;
  system.files["/proc/self/cgroup"] = "0::/a/b";
  system.files["/sys/fs/cgroup/a/b/cpu.max"] = "max 100000";
  system.files["/sys/fs/cgroup/a/cpu.max"] = "150000 100000";
  system.files["/sys/fs/cgroup/cpu.max"] = "400000 100000";
  const Check check = CheckCores(RunAlone(&system));
  EXPECT_EQ(check.verdict, Verdict::kWarning);
  EXPECT_THAT(check.evidence, HasSubstr("the time of 1.5"));
  EXPECT_EQ(check.fix, "echo max > /sys/fs/cgroup/a/cpu.max");
}

TEST(DoctorCores, QuotasOfControlGroupsVersion1Count) {
  FakeSystem system;
  system.files["/proc/self/cgroup"] = "4:cpu,cpuacct:/x\n0::/";
  system.files["/sys/fs/cgroup/cpu/x/cpu.cfs_quota_us"] = "200000";
  system.files["/sys/fs/cgroup/cpu/x/cpu.cfs_period_us"] = "100000";
  system.files["/sys/fs/cgroup/cpu/cpu.cfs_quota_us"] = "-1";
  system.files["/sys/fs/cgroup/cpu/cpu.cfs_period_us"] = "100000";
  const Check check = CheckCores(RunAlone(&system));
  EXPECT_EQ(check.verdict, Verdict::kWarning);
  EXPECT_EQ(check.fix, "echo -1 > /sys/fs/cgroup/cpu/x/cpu.cfs_quota_us");
}

TEST(DoctorCores, GarbageInTheGroupsIsNoQuota) {
  for (const char* groups : {"", ":", "0:", "0::no slash", "::::", "x\n\n:::/\n"}) {
    for (const char* quota : {"", "max", "1 0", "a b c", "-1 100000"}) {
      FakeSystem system;
      system.files["/proc/self/cgroup"] = groups;
      system.files["/sys/fs/cgroup/cpu.max"] = quota;
      EXPECT_EQ(CheckCores(RunAlone(&system)).verdict, Verdict::kOk) << groups << quota;
    }
  }
}

TEST(DoctorCores, AKernelThatDoesNotTellIsSkipped) {
  FakeSystem system;
  system.cores.clear();
  EXPECT_EQ(CheckCores(RunAlone(&system)).verdict, Verdict::kSkipped);
}

// ---- NUMA and links -----------------------------------------------------------------------------

class DoctorNuma : public testing::Test {
 protected:
  DoctorNuma() {
    system_.files["/sys/devices/system/node/online"] = "0-1";
    system_.files["/sys/devices/system/node/node0/cpulist"] = "0-3";
    system_.files["/sys/devices/system/node/node1/cpulist"] = "4-7";
    system_.files["/sys/class/net/eth0/device/numa_node"] = "1";
  }
  FakeSystem system_;
};

TEST_F(DoctorNuma, CoresNearTheInterfaceAreFine) {
  system_.cores = {4, 5, 6, 7};
  EXPECT_EQ(CheckNuma(RunAlone(&system_)).verdict, Verdict::kOk);
}

TEST_F(DoctorNuma, CoresOfBothNodesAreANote) {
  const Check check = CheckNuma(RunAlone(&system_));
  EXPECT_EQ(check.verdict, Verdict::kNote);
  EXPECT_THAT(check.fix, HasSubstr("numactl --cpunodebind=1 --membind=1"));
}

TEST_F(DoctorNuma, CoresOfTheOtherNodeOnlyAreAWarning) {
  system_.cores = {0, 1};
  EXPECT_EQ(CheckNuma(RunAlone(&system_)).verdict, Verdict::kWarning);
}

TEST_F(DoctorNuma, AnInterfaceWithoutANodeIsFine) {
  system_.files["/sys/class/net/eth0/device/numa_node"] = "-1";
  EXPECT_EQ(CheckNuma(RunAlone(&system_)).verdict, Verdict::kOk);
}

TEST_F(DoctorNuma, GarbageIsSkippedOrPassedOver) {
  system_.files["/sys/devices/system/node/node1/cpulist"] = "9-1,x";
  EXPECT_EQ(CheckNuma(RunAlone(&system_)).verdict, Verdict::kOk);
  for (const char* nodes : {"", "-", "0-99999999999", "one"}) {
    system_.files["/sys/devices/system/node/online"] = nodes;
    EXPECT_EQ(CheckNuma(RunAlone(&system_)).verdict, Verdict::kSkipped) << nodes;
  }
  system_.files.clear();
  EXPECT_EQ(CheckNuma(RunAlone(&system_)).verdict, Verdict::kSkipped);
}

TEST(DoctorLinks, SpeedAndDuplexHaveTheirVerdicts) {
  struct Row {
    const char* speed;
    const char* duplex;
    Verdict verdict;
    const char* fix;
  };
  for (const Row& row :
       {Row{"100000", "full", Verdict::kOk, ""}, Row{"1000", "full", Verdict::kNote, ""},
        Row{"100", "full", Verdict::kWarning, "ethtool -r eth0"},
        Row{"1000", "half", Verdict::kWarning, "ethtool -s eth0 autoneg on"},
        Row{"-1", "unknown", Verdict::kOk, ""}, Row{"4294967295", "unknown", Verdict::kOk, ""},
        Row{"fast", "", Verdict::kOk, ""}}) {
    FakeSystem system;
    system.files["/sys/class/net/eth0/speed"] = row.speed;
    system.files["/sys/class/net/eth0/duplex"] = row.duplex;
    const Check check = CheckLinks(RunAlone(&system));
    EXPECT_EQ(check.verdict, row.verdict) << row.speed << row.duplex;
    EXPECT_EQ(check.fix, row.fix);
  }
  FakeSystem system;
  Context context = RunAlone(&system);
  context.interfaces.clear();
  EXPECT_EQ(CheckLinks(context).verdict, Verdict::kSkipped);
}

// ---- memory -------------------------------------------------------------------------------------

TEST(DoctorMemory, AGroupsLimitIsTold) {
  FakeSystem system;
  EXPECT_EQ(CheckMemory(RunAlone(&system)).verdict, Verdict::kOk);
  system.files["/sys/fs/cgroup/memory.max"] = "max";
  EXPECT_EQ(CheckMemory(RunAlone(&system)).verdict, Verdict::kOk);
  system.files["/sys/fs/cgroup/memory.max"] = "4294967296";
  const Check check = CheckMemory(RunAlone(&system));
  EXPECT_EQ(check.verdict, Verdict::kNote);
  EXPECT_THAT(check.evidence, HasSubstr("allows 4 GiB"));
  EXPECT_EQ(check.fix, "echo max > /sys/fs/cgroup/memory.max");
  system.files["/sys/fs/cgroup/memory.max"] = "268435456";
  EXPECT_EQ(CheckMemory(RunAlone(&system)).verdict, Verdict::kWarning);
}

TEST(DoctorMemory, NoLimitOfVersion1IsNone) {
  FakeSystem system;
  system.files["/proc/self/cgroup"] = "4:memory:/x";
  system.files["/sys/fs/cgroup/memory/memory.limit_in_bytes"] = "9223372036854771712";
  EXPECT_EQ(CheckMemory(RunAlone(&system)).verdict, Verdict::kOk);
}

TEST(DoctorMemory, LittleLeftIsAWarning) {
  FakeSystem system;
  system.files["/proc/meminfo"] = "MemTotal: 65536000 kB\nMemAvailable: 1000 kB";
  EXPECT_EQ(CheckMemory(RunAlone(&system)).verdict, Verdict::kWarning);
}

TEST(DoctorMemory, GarbageIsSkipped) {
  for (const char* text : {"", "MemTotal:", "MemTotal: x kB\nMemAvailable: 1 kB",
                           "NotMemTotal: 1 kB\nMemAvailable: 1 kB"}) {
    FakeSystem system;
    system.files["/proc/meminfo"] = text;
    EXPECT_EQ(CheckMemory(RunAlone(&system)).verdict, Verdict::kSkipped) << text;
    EXPECT_EQ(CheckSwap(RunAlone(&system)).verdict, Verdict::kSkipped) << text;
  }
  FakeSystem system;
  system.files.clear();
  EXPECT_EQ(CheckMemory(RunAlone(&system)).verdict, Verdict::kSkipped);
  EXPECT_EQ(CheckSwap(RunAlone(&system)).verdict, Verdict::kSkipped);
}

TEST(DoctorSwap, InUseIsANote) {
  FakeSystem system;
  EXPECT_EQ(CheckSwap(RunAlone(&system)).evidence, "none");
  system.files["/proc/meminfo"] = "SwapTotal: 2048 kB\nSwapFree: 2048 kB";
  EXPECT_EQ(CheckSwap(RunAlone(&system)).verdict, Verdict::kOk);
  system.files["/proc/meminfo"] = "SwapTotal: 2048 kB\nSwapFree: 1024 kB";
  const Check check = CheckSwap(RunAlone(&system));
  EXPECT_EQ(check.verdict, Verdict::kNote);
  EXPECT_THAT(check.evidence, HasSubstr("1 MiB of 2 MiB in use"));
}

TEST(DoctorHugePages, NeverIsANote) {
  constexpr const char* kMode = "/sys/kernel/mm/transparent_hugepage/enabled";
  FakeSystem system;
  EXPECT_EQ(CheckHugePages(RunAlone(&system)).verdict, Verdict::kOk);
  system.files[kMode] = "always madvise [never]";
  const Check check = CheckHugePages(RunAlone(&system));
  EXPECT_EQ(check.verdict, Verdict::kNote);
  EXPECT_EQ(check.fix, std::string("echo madvise > ") + kMode);
  for (const char* text : {"", "always", "]never["}) {
    system.files[kMode] = text;
    EXPECT_EQ(CheckHugePages(RunAlone(&system)).verdict, Verdict::kSkipped) << text;
  }
}

// ---- limits and the clock -----------------------------------------------------------------------

TEST(DoctorLockedMemory, LittleIsANoteAndTheFixDependsOnTheHardLimit) {
  FakeSystem system;
  EXPECT_EQ(CheckLockedMemory(RunAlone(&system)).verdict, Verdict::kOk);
  system.limits[RLIMIT_MEMLOCK] = {8 * kMiB, kUnlimited};
  EXPECT_EQ(CheckLockedMemory(RunAlone(&system)).verdict, Verdict::kNote);
  EXPECT_EQ(CheckLockedMemory(RunAlone(&system)).fix, "ulimit -l unlimited");
  system.limits[RLIMIT_MEMLOCK] = {8 * kMiB, 8 * kMiB};
  EXPECT_THAT(CheckLockedMemory(RunAlone(&system)).fix, HasSubstr("/etc/security/limits.d"));
}

TEST(DoctorOpenFiles, FewAreToldInPeers) {
  FakeSystem system;
  Context context = RunAlone(&system);
  context.config.lanes = 10;
  EXPECT_EQ(CheckOpenFiles(context).verdict, Verdict::kOk);
  system.limits[RLIMIT_NOFILE] = {1024, 524288};
  const Check check = CheckOpenFiles(context);
  EXPECT_EQ(check.verdict, Verdict::kNote);
  EXPECT_THAT(check.evidence, HasSubstr("about 34 peers of 10 lanes"));
  EXPECT_EQ(check.fix, "ulimit -n 65536");
  system.limits[RLIMIT_NOFILE] = {128, 128};
  EXPECT_EQ(CheckOpenFiles(context).verdict, Verdict::kWarning);
  EXPECT_THAT(CheckOpenFiles(context).fix, HasSubstr("nofile 65536"));
}

TEST(DoctorClock, UnsynchronisedIsANote) {
  FakeSystem system;
  EXPECT_THAT(CheckClock(RunAlone(&system)).evidence, HasSubstr("within 1500 us"));
  system.clock = ClockState{};
  const Check check = CheckClock(RunAlone(&system));
  EXPECT_EQ(check.verdict, Verdict::kNote);
  EXPECT_EQ(check.fix, "timedatectl set-ntp true");
  system.clock = ErrnoError("adjtimex", EPERM);
  EXPECT_EQ(CheckClock(RunAlone(&system)).verdict, Verdict::kSkipped);
}

}  // namespace
}  // namespace ferry::tools
