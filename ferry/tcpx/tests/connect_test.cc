// Connects and registrations that a plug-in refuses, over the stand-in for GPUDirect-TCPX.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ferry/tcpx/tests/testing/standin.h"
#include "ferry/transfer/testing/linked_endpoints.h"

namespace ferry::tcpx {
namespace {

using ::testing::AllOf;
using testing::AskUntil;
using testing::Ends;
using ::testing::HasSubstr;
using testing::MakePages;
using testing::Pages;
using testing::StandIn;
using testing::Variables;
using transfer::Must;
using transfer::Soon;

TEST(PluginConnect, AConnectThatFailsIsNamed) {
  StandIn stand_in(Variables{{"FAULT", "connect_fail@2"}});
  Plugin* const plugin = Must(stand_in.Open());
  const auto listening = Must(Listening::Open(plugin, 1));
  Connecting connecting(plugin, 1, listening->handle());
  const auto connected = AskUntil(Soon(), [&] { return connecting.Connect(); });
  ASSERT_FALSE(connected);
  EXPECT_EQ(connected.error().code(), Code::kPeerLost);
  EXPECT_THAT(connected.error().message(),
              AllOf(HasSubstr("connect from device 1"), HasSubstr("2 (ncclSystemError)")));
}

TEST(PluginConnect, AnAcceptThatFailsIsNamed) {
  StandIn stand_in(Variables{{"FAULT", "accept_fail"}});
  const auto listening = Must(Listening::Open(Must(stand_in.Open()), 0));
  const auto accepted = AskUntil(Soon(), [&] { return listening->Accept(); });
  ASSERT_FALSE(accepted);
  EXPECT_EQ(accepted.error().code(), Code::kPeerLost);
  EXPECT_THAT(accepted.error().message(), HasSubstr("accept on device 0"));
}

TEST(PluginConnect, MemoryOfAGpuThatBeginsInAPageIsRefusedWithTheRule) {
  StandIn stand_in(Variables{});
  Ends ends = Must(testing::Connect(Must(stand_in.Open()), 1, Soon()));
  const Pages memory = MakePages(3 * 4096);
  const auto mr = ends.receivers[0]->Register(memory.get() + 16, 4096, /*on_gpu=*/true);
  ASSERT_FALSE(mr);
  EXPECT_THAT(mr.error().message(), HasSubstr("must begin at a multiple of 4096 bytes"));
}

}  // namespace
}  // namespace ferry::tcpx
