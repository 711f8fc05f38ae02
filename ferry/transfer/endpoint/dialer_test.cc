// Tests how a dialed connection's lanes are assigned to loops.
#include "ferry/transfer/endpoint/dialer.h"

#include <gtest/gtest.h>

#include <memory>

#include "ferry/net/builtin.h"
#include "ferry/transfer/endpoint/endpoint_core.h"
#include "ferry/transfer/engine/connection_core.h"
#include "ferry/transfer/testing/linked_endpoints.h"

namespace ferry::transfer {
namespace {

// With more lanes the first two would share a loop, because the first one carries little then.
TEST(DialerTest, TwoLanesAreOnTwoLoopsHoweverManyWereAskedFor) {
  const Endpoint far = Must(Endpoint::Create(SmallSlices(2, 2)));
  for (const int lanes : {2, 3, 5}) {
    SCOPED_TRACE(lanes);
    const auto near =
        std::make_shared<EndpointCore>(SmallSlices(lanes, 2), net::CreateBuiltinProvider());
    ASSERT_TRUE(near->Start());
    const auto dialer =
        std::make_shared<Dialer>(near, net::Address{"127.0.0.1", far.port()}, far.id(), Soon());
    near->Follow(dialer);
    dialer->home()->PostOrRun([dialer] { dialer->StartOnLoop(); });
    dialer->home()->DriveUntil([&] { return dialer->done(); }, Soon(), near->config().spin);
    const auto connection = Must(dialer->result());
    EXPECT_EQ(connection->lanes(), 2u);
    EXPECT_NE(connection->lane(0).loop(), connection->lane(1).loop());
    near->Shutdown();
  }
}

}  // namespace
}  // namespace ferry::transfer
