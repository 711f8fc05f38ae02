// Cases of `ferry perf` that an NCCL network plugin carries.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ferry/core/deadline.h"
#include "ferry/core/result.h"
#include "ferry/tools/perf/cmd_perf.h"
#include "ferry/tools/perf/marks.h"
#include "ferry/tools/support/json_fwd.h"
#include "ferry/tools/support/operations.h"
#include "ferry/tools/support/plugin_carrier.h"

namespace ferry::tools {

LaunchMicroseconds LaunchOf(const Carrier& carrier);

// Carrier::Run::next_offset for one side: the offset of each operation of a part. The marks must
// outlive it.
std::function<std::uint64_t()> OffsetsOf(const PerfCase& perf_case, const Marks& marks,
                                         bool is_source);

// One case of a client, through a plugin. A write goes to the server, a read comes from it; as a
// plugin sends and receives, both sides take part in either.
class CarriedCase {
 public:
  // Requires that the server's memory is set up; this side's memory must outlive the object.
  static Result<std::unique_ptr<CarriedCase>> Open(const PerfJob& job, const PerfCase& perf_case,
                                                   std::span<std::byte> memory, Control* control,
                                                   Deadline deadline);

  // CPU time of both processes. The clock stops when all bytes are in place and this side knows it.
  Result<Sample> Run(std::uint64_t count, std::uint64_t depth, const Marks& marks,
                     Deadline deadline);
  const Carrier& carrier() const noexcept { return *carrier_; }

 private:
  CarriedCase(const PerfCase& perf_case, Control* control) : case_(perf_case), control_(control) {}
  Status OpenToServer(const Json& question, Deadline deadline);
  Status OpenFromServer(Json question, Deadline deadline);

  const PerfCase case_;
  Control* const control_;
  std::unique_ptr<Carrier> carrier_;
};

}  // namespace ferry::tools
