// Tests the choice of network cards by their place on PCIe.
#include "ferry/tcpx/host/near_devices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ferry::tcpx {
namespace {

using ::testing::ElementsAre;

std::vector<NicFacts> NicsAt(std::initializer_list<const char*> paths) {
  std::vector<NicFacts> nics;
  for (const char* const path : paths) {
    NicFacts nic;
    nic.pci_path = path;
    nics.push_back(nic);
  }
  return nics;
}

TEST(DevicesNear, AreThoseBelowTheSameSwitch) {
  const auto nics = NicsAt({"/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0",
                            "/sys/devices/pci0000:3a/0000:3a:01.0/0000:3b:00.0",
                            "/sys/devices/pci0000:3a/0000:3a:02.0/0000:40:00.0",
                            "/sys/devices/pci0000:3a/0000:3a:01.0/0000:3c:00.0"});
  EXPECT_THAT(DevicesNear(nics, "/sys/devices/pci0000:3a/0000:3a:01.0/0000:3d:00.0"),
              ElementsAre(1, 3));
  EXPECT_THAT(DevicesNear(nics, "/sys/devices/pci0000:3a/0000:3a:05.0/0000:50:00.0"),
              ElementsAre(1, 2, 3));
}

TEST(DevicesNear, AreAllWhereNothingIsKnown) {
  const auto nics = NicsAt({"/sys/devices/pci0000:00/0000:00:01.0", ""});
  EXPECT_THAT(DevicesNear(nics, "/sys/devices/pci0000:7f/0000:7f:01.0"), ElementsAre(0, 1));
  EXPECT_THAT(DevicesNear(nics, ""), ElementsAre(0, 1));
}

}  // namespace
}  // namespace ferry::tcpx
