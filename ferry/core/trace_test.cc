// Tests of spans, their overlap and the trace file.
#include "ferry/core/trace.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace ferry {
namespace {

const Clock::time_point kTraceStart = Clock::now();

Clock::time_point AtMicros(int micros) { return kTraceStart + microseconds(micros); }

// A unique file name; deletes the file at the end.
class TraceFile {
 public:
  TraceFile() : path_(testing::TempDir() + "ferry_trace_" + std::to_string(::getpid()) + ".json") {}
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;
  ~TraceFile() { (void)std::remove(path_.c_str()); }

  const std::string& path() const { return path_; }
  // The events of the file that `trace` writes.
  nlohmann::json EventsOf(const Trace& trace) const {
    const Status written = trace.Write(path_);
    EXPECT_TRUE(written) << written.error().ToString();
    std::ifstream file(path_);
    std::ostringstream text;
    text << file.rdbuf();
    const auto parsed = nlohmann::json::parse(text.str(), nullptr, false);
    EXPECT_TRUE(parsed.is_object()) << text.str();
    return parsed.value("traceEvents", nlohmann::json::array());
  }

 private:
  const std::string path_;
};

std::vector<nlohmann::json> OfPhase(const nlohmann::json& events, const char* phase) {
  std::vector<nlohmann::json> found;
  for (const auto& event : events) {
    if (event.at("ph") == phase) found.push_back(event);
  }
  return found;
}

std::map<int, std::string> LaneNames(const nlohmann::json& events) {
  std::map<int, std::string> names;
  for (const auto& event : OfPhase(events, "M")) {
    if (event.at("name") == "thread_name") names[event.at("tid")] = event.at("args").at("name");
  }
  return names;
}

TEST(Trace, SpansAreCompleteEventsInMicrosecondsFromTheFirstBegin) {
  Trace trace;
  trace.Add("compute", "chunk 0", AtMicros(150), AtMicros(250));
  trace.Add("copy H2D", "chunk 0", AtMicros(100), AtMicros(150) + std::chrono::nanoseconds(500));
  const auto events = TraceFile().EventsOf(trace);
  const auto spans = OfPhase(events, "X");
  ASSERT_EQ(spans.size(), 2U);
  EXPECT_EQ(spans[0].at("name"), "chunk 0");
  EXPECT_DOUBLE_EQ(spans[0].at("ts"), 50);
  EXPECT_DOUBLE_EQ(spans[0].at("dur"), 100);
  EXPECT_DOUBLE_EQ(spans[1].at("ts"), 0);
  EXPECT_DOUBLE_EQ(spans[1].at("dur"), 50.5);
  const auto names = LaneNames(events);
  EXPECT_EQ(names.at(spans[0].at("tid")), "compute");
  EXPECT_EQ(names.at(spans[1].at("tid")), "copy H2D");
  EXPECT_EQ(spans[0].at("pid"), spans[1].at("pid"));
}

TEST(Trace, LanesAreShownInTheOrderOfTheirFirstSpans) {
  Trace trace;
  for (const char* lane : {"network", "copy H2D", "network", "compute"}) {
    trace.Add(lane, "x", AtMicros(0), AtMicros(1));
  }
  const auto names = LaneNames(TraceFile().EventsOf(trace));
  EXPECT_EQ(names, (std::map<int, std::string>{{1, "network"}, {2, "copy H2D"}, {3, "compute"}}));
  EXPECT_EQ(trace.Count("network"), 2U);
  EXPECT_EQ(trace.Count("disk"), 0U);
}

TEST(Trace, NamesMayBeAnyBytes) {
  Trace trace;
  const std::string odd = "a \"quoted\" \\ name\n\x01";
  trace.Add(odd, odd, AtMicros(0), AtMicros(1));
  trace.Add("bad \xff utf-8", "x", AtMicros(0), AtMicros(1));
  const auto events = TraceFile().EventsOf(trace);
  EXPECT_EQ(LaneNames(events).at(1), odd);
  EXPECT_EQ(OfPhase(events, "X")[0].at("name"), odd);
}

TEST(Trace, OfNothingIsAFileWithoutSpans) {
  const auto events = TraceFile().EventsOf(Trace());
  EXPECT_TRUE(OfPhase(events, "X").empty());
  EXPECT_EQ(OfPhase(events, "M").size(), 1U);
}

TEST(Trace, ASpanThatEndsBeforeItBeginsHasNoLength) {
  Trace trace;
  trace.Add("compute", "x", AtMicros(10), AtMicros(5));
  EXPECT_DOUBLE_EQ(OfPhase(TraceFile().EventsOf(trace), "X")[0].at("dur"), 0);
}

TEST(Trace, AppendingKeepsLanesByTheirNames) {
  Trace trace;
  trace.Add("compute", "x", AtMicros(0), AtMicros(10));
  Trace other;
  other.Add("copy D2H", "y", AtMicros(5), AtMicros(10));
  other.Add("compute", "z", AtMicros(10), AtMicros(20));
  trace.Append(other);
  EXPECT_EQ(trace.Count("compute"), 2U);
  EXPECT_EQ(trace.Count("copy D2H"), 1U);
  EXPECT_DOUBLE_EQ(trace.Overlap({"copy D2H"}, {"compute"}), 1);
}

// ---- overlap ------------------------------------------------------------------------------------

TEST(Trace, OverlapIsTheSharedTimeOfTheShorterSide) {
  Trace trace;
  trace.Add("copy H2D", "0", AtMicros(0), AtMicros(100));
  trace.Add("compute", "0", AtMicros(75), AtMicros(125));
  EXPECT_DOUBLE_EQ(trace.Overlap({"copy H2D"}, {"compute"}), 0.5);
  EXPECT_DOUBLE_EQ(trace.Overlap({"compute"}, {"copy H2D"}), 0.5);
  EXPECT_DOUBLE_EQ(trace.Overlap({"compute"}, {"compute"}), 1);
}

TEST(Trace, TimeInWhichSeveralSpansOfASideAreInFlightCountsOnce) {
  Trace trace;
  trace.Add("copy H2D", "0", AtMicros(0), AtMicros(100));
  trace.Add("copy H2D", "1", AtMicros(20), AtMicros(50));
  trace.Add("copy D2H", "0", AtMicros(50), AtMicros(150));
  trace.Add("compute 0", "0", AtMicros(100), AtMicros(200));
  trace.Add("compute 1", "1", AtMicros(140), AtMicros(260));
  // Copies: 0 to 150. Compute: 100 to 260.
  EXPECT_DOUBLE_EQ(trace.Overlap({"copy H2D", "copy D2H"}, {"compute 0", "compute 1"}),
                   50.0 / 150.0);
}

TEST(Trace, OverlapWithManyGapsIsSummedUp) {
  Trace trace;
  for (int i = 0; i < 10; ++i) {
    trace.Add("copy H2D", "x", AtMicros(100 * i), AtMicros(100 * i + 40));
    trace.Add("compute", "x", AtMicros(100 * i + 30), AtMicros(100 * i + 80));
  }
  EXPECT_DOUBLE_EQ(trace.Overlap({"copy H2D"}, {"compute"}), 0.25);
}

TEST(Trace, WhatFollowsWithoutAGapDoesNotOverlap) {
  Trace trace;
  trace.Add("copy H2D", "0", AtMicros(0), AtMicros(10));
  trace.Add("compute", "0", AtMicros(10), AtMicros(20));
  EXPECT_DOUBLE_EQ(trace.Overlap({"copy H2D"}, {"compute"}), 0);
}

TEST(Trace, NothingOverlapsWithALaneThatIsNotThere) {
  Trace trace;
  trace.Add("compute", "0", AtMicros(0), AtMicros(10));
  EXPECT_DOUBLE_EQ(trace.Overlap({"copy H2D"}, {"compute"}), 0);
  EXPECT_DOUBLE_EQ(Trace().Overlap({}, {}), 0);
}

// ---- threads and errors -------------------------------------------------------------------------

TEST(Trace, ThreadsMayAddAtOnce) {
  Trace trace;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&trace, i] {
      const std::string lane = "lane " + std::to_string(i % 2);
      for (int k = 0; k < 500; ++k) trace.Add(lane, "x", AtMicros(k), AtMicros(k + 1));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(trace.Count("lane 0"), 1000U);
  EXPECT_EQ(trace.Count("lane 1"), 1000U);
}

TEST(Trace, AFileThatCannotBeWrittenIsNamedWithTheReason) {
  const Trace trace;
  for (const auto& [path, why] : std::map<std::string, std::string>{
           {"/no/such/folder/trace.json", "No such file or directory"},
           {"/dev/full", "No space left on device"}}) {
    const Status written = trace.Write(path);
    ASSERT_FALSE(written) << path;
    EXPECT_EQ(written.error().code(), Code::kInvalidArgument);
    EXPECT_NE(written.error().message().find(path), std::string::npos);
    EXPECT_NE(written.error().message().find(why), std::string::npos) << written.error().message();
  }
}

TEST(Trace, WhatWaitsForItsTurnBeginsWhenThatComes) {
  Trace trace;
  trace.AddInTurn("lane 0", "first", AtMicros(0), AtMicros(10));
  trace.AddInTurn("lane 0", "second", AtMicros(2), AtMicros(15));
  trace.AddInTurn("lane 1", "other", AtMicros(2), AtMicros(5));
  trace.AddInTurn("lane 0", "within", AtMicros(3), AtMicros(12));
  const TraceFile file;
  std::map<std::string, std::pair<double, double>> spans;
  for (const auto& event : file.EventsOf(trace)) {
    if (event["ph"] == "X") spans[event["name"]] = {event["ts"], event["dur"]};
  }
  EXPECT_EQ(spans["second"], std::pair(10.0, 5.0));
  EXPECT_EQ(spans["other"], std::pair(2.0, 3.0));
  EXPECT_EQ(spans["within"].second, 0.0);
  EXPECT_EQ(trace.LanesLike("lane "), (std::vector<std::string>{"lane 0", "lane 1"}));
  EXPECT_TRUE(trace.LanesLike("GPU ").empty());
}

TEST(Trace, TheActiveOneIsWhatWasSetLast) {
  EXPECT_EQ(ActiveTrace(), nullptr);
  Trace trace;
  SetActiveTrace(&trace);
  EXPECT_EQ(ActiveTrace(), &trace);
  SetActiveTrace(nullptr);
  EXPECT_EQ(ActiveTrace(), nullptr);
}

}  // namespace
}  // namespace ferry
