// `ferry kernel-bench` on a simulated device: that every row is there and was measured. Times of
// real ones need a GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/cli/ferry_program.h"

namespace ferry::tests {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::IsSupersetOf;

const Arguments kSimulatedGpu = {"FERRY_DEVICES=simulated:1:1"};
const Arguments kNoGpu = {"FERRY_DEVICES=none"};

// Objects that have a name; others tell of the device.
std::vector<json> NamedRows(const std::string& lines) {
  std::vector<json> rows;
  std::istringstream in(lines);
  for (std::string line; std::getline(in, line);) {
    json row = json::parse(line, nullptr, false);
    EXPECT_TRUE(row.is_object()) << line;
    if (row.is_object() && row.contains("name")) rows.push_back(std::move(row));
  }
  return rows;
}

std::vector<std::string> NamesOf(const std::vector<json>& rows) {
  std::vector<std::string> names;
  for (const json& row : rows) names.push_back(row.value("name", ""));
  return names;
}

TEST(KernelBench, MeasuresEveryRowOfItsList) {
  const ProgramEnd listed = Ferry({"kernel-bench", "--tiny", "--list", "--json"}, kNoGpu);
  ASSERT_EQ(listed.exit_code, 0) << listed.err;
  const ProgramEnd measured = Ferry({"kernel-bench", "--tiny", "--json"}, kSimulatedGpu);
  ASSERT_EQ(measured.exit_code, 0) << measured.err << measured.out;
  const std::vector<json> rows = NamedRows(measured.out);
  EXPECT_EQ(NamesOf(rows), NamesOf(NamedRows(listed.out)));
  for (const json& row : rows) {
    SCOPED_TRACE(row.dump());
    EXPECT_FALSE(row.contains("error"));
    EXPECT_TRUE(row.value("written", false));
    EXPECT_GT(row.value("checked", 0), 0);
    EXPECT_GT(row.value("us", 0.0), 0);
    EXPECT_LE(row.value("us_p10", 1e9), row.value("us_p90", 0.0));
    EXPECT_LE(row.value("us_min", 1e9), row.value("us", 0.0));
    EXPECT_GE(row.value("us_max", 0.0), row.value("us", 1e9));
    EXPECT_GT(row.value("bytes", 0), 0);
    EXPECT_GE(row.value("samples", 0), 3);
    const bool of_flops = row.value("flops", 0.0) > 0;
    EXPECT_EQ(row["tflops"].is_number(), of_flops);
    // A small copy's time is not a meaningful ceiling.
    const bool has_share = !of_flops && row.value("bytes", 0) >= 4096;
    EXPECT_EQ(row["ceiling_ratio"].is_number(), has_share);
    EXPECT_EQ(row["ceiling_ratio"].is_null(), !has_share);
  }
}

TEST(KernelBench, ItsListHasEveryOpAndNoNameTwice) {
  const ProgramEnd listed = Ferry({"kernel-bench", "--list", "--json"}, kNoGpu);
  ASSERT_EQ(listed.exit_code, 0) << listed.err;
  const std::vector<json> rows = NamedRows(listed.out);
  std::set<std::string> ops;
  for (const json& row : rows) {
    ops.insert(row.value("op", ""));
    EXPECT_GE(row.value("launches", 0), 2) << row.dump();
    // None is measured by one launch alone, nor by more than there is memory for.
    EXPECT_LE(row.value("launches", 0) * row.value("bytes", 0.0), 64e9) << row.dump();
  }
  EXPECT_THAT(ops,
              IsSupersetOf({"fused_add_gelu", "element_wise_mul_add", "silu_and_mul", "rms_norm",
                            "add_rms_norm", "rope", "store_kvcache", "qk_norm_rope_store",
                            "attention_decode", "attention_prefill", "sampler"}));
  const std::vector<std::string> names = NamesOf(rows);
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), names.size());
}

TEST(KernelBench, WhatMaySpoilTheDeviceComesLast) {
  const ProgramEnd listed = Ferry({"kernel-bench", "--list", "--json"}, kNoGpu);
  ASSERT_EQ(listed.exit_code, 0) << listed.err;
  std::string variants;
  for (const json& row : NamedRows(listed.out)) {
    variants += row.value("variant", "").starts_with("wgmma") ? "t" : ".";
  }
  const std::size_t first = variants.find('t');
  ASSERT_NE(first, std::string::npos);
  EXPECT_GT(first, 0);
  EXPECT_EQ(variants.find('.', first), std::string::npos) << variants;
}

TEST(KernelBench, WritesATableOrJsonForTheOpsThatWereAskedFor) {
  const Arguments asked{"kernel-bench", "--tiny", "--op", "rms_norm,attention_prefill",
                        "--device",     "cuda:0"};
  const ProgramEnd table = Ferry(asked, kSimulatedGpu);
  ASSERT_EQ(table.exit_code, 0) << table.err;
  EXPECT_THAT(table.out, HasSubstr("rms_norm bf16 rows=8 cols=64"));
  EXPECT_THAT(table.out, HasSubstr("TFLOP/s"));
  EXPECT_THAT(table.out, HasSubstr("GB/s       -"));
  Arguments as_json = asked;
  as_json.emplace_back("--json");
  const ProgramEnd ended = Ferry(as_json, kSimulatedGpu);
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  const std::vector<json> rows = NamedRows(ended.out);
  EXPECT_FALSE(rows.empty());
  for (const json& row : rows) {
    const std::string op = row.value("op", "");
    EXPECT_TRUE(op == "rms_norm" || op == "attention_prefill") << op;
    EXPECT_THAT(table.out, HasSubstr(row.value("name", "?")));
  }
}

TEST(KernelBench, AnOpThatThereIsNotIsAnsweredWithThoseThatThereAre) {
  const ProgramEnd ended = Ferry({"kernel-bench", "--op", "rmsnorm"}, kSimulatedGpu);
  EXPECT_EQ(ended.exit_code, 2);
  EXPECT_THAT(ended.err, Sentence("ferry kernel-bench", "unknown op \"rmsnorm\"; give "));
  EXPECT_THAT(ended.err, HasSubstr("rms_norm, rms_norm_quant, add_rms_norm, rope"));
}

TEST(KernelBench, ADeviceThatThereIsNotIsRefused) {
  const ProgramEnd unnamed = Ferry({"kernel-bench", "--device", "gpu"}, kSimulatedGpu);
  EXPECT_EQ(unnamed.exit_code, 2);
  EXPECT_THAT(unnamed.err, HasSubstr("write cuda:N"));
  EXPECT_EQ(Ferry({"kernel-bench", "--device", "cuda:7"}, kSimulatedGpu).exit_code, 2);
  EXPECT_EQ(Ferry({"kernel-bench"}, kNoGpu).exit_code, 2);
}

}  // namespace
}  // namespace ferry::tests
