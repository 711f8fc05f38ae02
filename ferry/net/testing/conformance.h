// The conformance suite that every provider must pass.
#pragma once
#include <gtest/gtest.h>

#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "ferry/net/provider.h"
#include "ferry/net/testing/lane_end.h"

// What every provider must do (provider.h), as a suite of tests. A provider's own test instantiates
// it:
//
//   INSTANTIATE_TEST_SUITE_P(Foo, ProviderConformance,
//                            ::testing::Values(ConformanceCase{"Plain", [] { return ...; }}),
//                            ConformanceCaseName);
namespace ferry::net {

// The provider-specific part of the suite; created anew for each test.
class ConformanceTarget {
 public:
  virtual ~ConformanceTarget() = default;
  // Why these tests cannot run on this machine; empty if they can.
  virtual std::string Unavailable() { return {}; }
  // Called twice: once for each end.
  virtual std::unique_ptr<Provider> MakeProvider() = 0;
  virtual Config MakeConfig() { return {}; }
  // Where to listen; port 0.
  virtual Address ListenAddress() = 0;
  // An address where connects get no answer, for the lifetime of the target.
  virtual Address SilentAddress() = 0;
  // For tests of large payloads.
  virtual std::size_t LargeBytes() { return std::size_t{64} << 20; }
};

struct ConformanceCase {
  const char* name;  // letters and digits
  std::unique_ptr<ConformanceTarget> (*make)();
};
void PrintTo(const ConformanceCase& parameter, std::ostream* out);
std::string ConformanceCaseName(const ::testing::TestParamInfo<ConformanceCase>& info);

// Memory that a test registers.
struct RegisteredBuffer {
  std::vector<std::byte> bytes;
  std::unique_ptr<RegisteredMemory> memory;
};

class ProviderConformance : public ::testing::TestWithParam<ConformanceCase> {
 protected:
  void SetUp() override;

  // Creates a lane; neither end is attached.
  void Connect();
  void ConnectAndAttach();
  // A frame of `bytes` in pieces of these sizes, with a pattern that depends on the metadata.
  TestFrame* Make(LaneEnd& end, std::string_view meta, std::size_t bytes = 0,
                  std::span<const std::size_t> pieces = {});
  // Whether the arrived frames equal the given ones, in order.
  static ::testing::AssertionResult Match(std::span<TestFrame* const> frames,
                                          std::span<const Arrived> arrived);
  std::size_t large() const { return target_->LargeBytes(); }

  std::unique_ptr<ConformanceTarget> target_;
  Config config_;
  bool splices_ = false;                 // frames of Make() may be spliced
  std::unique_ptr<TestHost> near_host_;  // connects
  std::unique_ptr<TestHost> far_host_;   // listens
  Address address_;                      // of far_host_, once connected
  // Used by the ends' callbacks, which may run until the ends are destroyed.
  Tally tally_;
  Scatter place_;
  RegisteredBuffer source_;
  RegisteredBuffer sink_;
  std::size_t moves_ = 0;
  std::unique_ptr<LaneEnd> near_;
  std::unique_ptr<LaneEnd> far_;
};

}  // namespace ferry::net
