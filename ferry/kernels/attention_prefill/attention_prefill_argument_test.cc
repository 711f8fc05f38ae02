// Tests of argument checks and form selection of prefill attention; they do not access the tensors'
// memory.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "ferry/kernels/attention_prefill/attention_prefill.h"
#include "ferry/kernels/testing/op_bed.h"

namespace ferry::kernels {
namespace {

// Each wrong argument, and a piece of the sentence that says so.
struct WrongPrefill {
  const char* sentence;
  std::function<void(AttentionPrefillArgs*)> spoil;
};

AttentionPrefillArgs GoodPrefillArgs(std::byte* memory) {
  return {.q = Tensor::Contiguous(memory, DType::kBfloat16, {5, 8, 128}),
          .k = Tensor::Contiguous(memory + 32768, DType::kBfloat16, {7, 2, 128}),
          .v = Tensor::Contiguous(memory + 32768, DType::kBfloat16, {7, 2, 128}),
          .cu_seqlens_q = Tensor::Contiguous(memory + 65536, DType::kInt32, {3}),
          .cu_seqlens_k = Tensor::Contiguous(memory + 65536, DType::kInt32, {3}),
          .block_tables = {},
          .out = Tensor::Contiguous(memory + 16384, DType::kBfloat16, {5, 8, 128}),
          .max_seqlen_q = 4,
          .scale = 0.1F,
          .causal = true,
          .stages = 2};
}

void ExpectPrefillSentences(const std::vector<WrongPrefill>& cases,
                            Status (*check)(const AttentionPrefillArgs&), Code code) {
  alignas(16) static std::byte memory[128 * 1024];  // nobody reads it
  kernels::ExpectSentences(GoodPrefillArgs(memory), cases, check, code);
}

void MakePaged(AttentionPrefillArgs* args, std::int64_t page) {
  for (Tensor* keys : {&args->k, &args->v}) {
    *keys = Tensor::Contiguous(keys->data, DType::kBfloat16, {2, page, 2, 128});
  }
  args->block_tables = Tensor::Contiguous(args->cu_seqlens_q.data, DType::kInt32, {2, 3});
}

TEST(AttentionPrefillCheck, EachWrongArgumentHasItsSentence) {
  ExpectPrefillSentences(
      {{"q has 2 sizes; it must have 3", [](auto* args) { args->q.rank = 2; }},
       {"q is [5, 8, 128] int64", [](auto* args) { args->q.dtype = DType::kInt64; }},
       {"k has 4 sizes; it must have 3", [](auto* args) { args->k.rank = 4; }},
       {"k is [7, 2, 128] fp16; it must be bf16, as q is",
        [](auto* args) { args->k.dtype = DType::kFloat16; }},
       {"k is [7, 2, 64] bf16", [](auto* args) { args->k.shape[2] = 64; }},
       {"of a number of heads that q's 8 are a multiple of",
        [](auto* args) { args->k.shape[1] = 3; }},
       {"v is [6, 2, 128] bf16; it must be [7, 2, 128], as k is",
        [](auto* args) { args->v.shape[0] = 6; }},
       {"cu_seqlens_q is [3] fp32; it must be int32",
        [](auto* args) { args->cu_seqlens_q.dtype = DType::kFloat32; }},
       {"cu_seqlens_k is [2] int32; it must be [3], as cu_seqlens_q is",
        [](auto* args) { args->cu_seqlens_k.shape[0] = 2; }},
       {"it must be [batch + 1]", [](auto* args) { args->cu_seqlens_q.shape[0] = 0; }},
       {"it must be [blocks, 1 to 2^30 tokens, kv_heads, head_size]",
        [](auto* args) { MakePaged(args, 0); }},
       {"stages is 1; it must be 2 with lse, sinks, a window or a softcap, for e4m3 keys, and for "
        "pages that are not multiples of 16 tokens",
        [](auto* args) {
          MakePaged(args, 8);
          args->stages = 1;
        }},
       {"block_tables is [1, 3] int32; it must be [2, 3], a row for each sequence",
        [](auto* args) {
          MakePaged(args, 16);
          args->block_tables.shape[0] = 1;
        }},
       {"out is [4, 8, 128] bf16; it must be [5, 8, 128], as q is",
        [](auto* args) { args->out.shape[0] = 4; }},
       {"out lies over q", [](auto* args) { args->out = args->q; }},
       {"max_seqlen_q is -1; it must be 0 to 2^30", [](auto* args) { args->max_seqlen_q = -1; }},
       {"scale is -1; it must be a number above 0", [](auto* args) { args->scale = -1; }},
       {"it must be a number above 0, and at most 2.3e38", [](auto* args) { args->scale = 3e38F; }},
       {"stages is 0; it must be 1, 2 or 3", [](auto* args) { args->stages = 0; }},
       {"splits is 257; it must be 1 to 256", [](auto* args) { args->splits = 257; }}},
      CheckAttentionPrefill, Code::kInvalidArgument);
}

TEST(AttentionPrefillCheck, WhatOnlyTheGpuCannotDoHasItsSentence) {
  ExpectPrefillSentences({{"heads of 64, 128 and 256, use the CPU's",
                           [](auto* args) { args->q.dtype = DType::kFloat32; }}},
                         CheckAttentionPrefillForDevice, Code::kUnsupported);
  ExpectPrefillSentences(
      {{"multiples of 16 bytes", [](auto* args) { args->k.stride[0] = 260; }},
       {"max_seqlen_q is", [](auto* args) { args->max_seqlen_q = 65535 * 128 + 1; }},
       {"workspace has 0 sizes; it must have 1", [](auto* args) { args->splits = 2; }},
       {"workspace is [16] fp32; it must be [10400] or more, for 2 parts",
        [](auto* args) {
          args->splits = 2;
          args->workspace = TensorAt(1, {16}, DType::kFloat32);
        }},
       {"of fewer heads: with the parts they are more than a grid has",
        [](auto* args) {
          args->splits = 2;
          args->max_seqlen_q = 8'000'000;
          args->q.shape[1] = 512;
        }},
       {"of at most 65535 sequences", [](auto* args) { args->cu_seqlens_q.shape[0] = 65537; }}},
      CheckAttentionPrefillForDevice, Code::kInvalidArgument);
}

TEST(AttentionPrefillForm, IsWgmmaSm90WhereThatCanBeUnlessTheOtherOneIsAskedFor) {
  alignas(16) static std::byte memory[128 * 1024];  // nobody reads it
  const AttentionPrefillArgs args = GoodPrefillArgs(memory);
  EXPECT_EQ(*PrefillFormOf(args, false), PrefillForm::kCpAsync);
  EXPECT_EQ(*PrefillFormOf(args, true), PrefillForm::kWgmmaSm90);
  const auto form_with = [&](auto change) {
    AttentionPrefillArgs changed = args;
    change(&changed);
    return *PrefillFormOf(changed, true);
  };
  EXPECT_EQ(form_with([](auto* a) { a->form = PrefillForm::kCpAsync; }), PrefillForm::kCpAsync);
  EXPECT_EQ(form_with([](auto* a) { MakePaged(a, 16); }), PrefillForm::kWgmmaSm90);
  EXPECT_EQ(form_with([](auto* a) { MakePaged(a, 1); }), PrefillForm::kCpAsync);
  EXPECT_EQ(form_with([](auto* a) { a->stages = 3; }), PrefillForm::kCpAsync);
  EXPECT_EQ(form_with([](auto* a) { a->k.stride[1] = 0; }), PrefillForm::kCpAsync);
}

TEST(AttentionPrefillForm, WgmmaSm90UsesNoStrideOfASizeOfOne) {
  alignas(16) static std::byte memory[128 * 1024];  // nobody reads it
  AttentionPrefillArgs args = GoodPrefillArgs(memory);
  args.form = PrefillForm::kWgmmaSm90;
  args.k.shape[0] = args.v.shape[0] = 1;
  args.k.stride[0] = 0;
  EXPECT_EQ(*PrefillFormOf(args, false), PrefillForm::kWgmmaSm90);
}

TEST(AttentionPrefillForm, WgmmaSm90SaysWhatItCannotDo) {
  const auto asked = [](auto spoil) {
    return [spoil](AttentionPrefillArgs* args) {
      args->form = PrefillForm::kWgmmaSm90;
      spoil(args);
    };
  };
  ExpectPrefillSentences(
      {{"v is [2, 16, 2, 128] bf16 with strides [4096, 256, 0, 1]; it must be with strides",
        asked([](auto* args) {
          MakePaged(args, 16);
          args->v.stride[2] = 0;
        })},
       {"k is [2, 8, 2, 128] bf16; it must be of pages of a multiple of 16 tokens for the form",
        asked([](auto* args) { MakePaged(args, 8); })},
       {"stages is 3; it must be 2 for the form kWgmmaSm90",
        asked([](auto* args) { args->stages = 3; })},
       {"it must be with strides of 128 to 2^39 - 1 for the form kWgmmaSm90",
        asked([](auto* args) { args->k.stride[1] = 0; })},
       {"q is [5, 8, 128] bf16 with strides [549755813888, 128, 1]",
        asked([](auto* args) { args->q.stride[0] = std::int64_t{1} << 39; })}},
      [](const AttentionPrefillArgs& args) -> Status {
        FERRY_TRY(PrefillFormOf(args, true));
        return Ok();
      },
      Code::kInvalidArgument);
}

// 227 KiB of shared memory, and 232 registers of a thread, of which some are for other things.
TEST(AttentionPrefillForm, WgmmaSm90sTilesFitIntoAThreadBlock) {
  for (const int head_size : {64, 128, 256}) {
    const WgmmaSm90Tiles tiles = WgmmaSm90TilesOf(head_size);
    const int rows = tiles.groups * 64 + tiles.stages * 2 * tiles.keys;
    EXPECT_LE(rows * head_size * 2 + 2048, 227 * 1024) << head_size;
    EXPECT_LE(head_size / 2 + tiles.keys / 2 + tiles.keys / 4, 232 - 48) << head_size;
    EXPECT_EQ(tiles.keys % 64, 0) << head_size;
  }
}

// 32 heads that share 8, of 128.
TEST(AttentionPrefillPlan, SplitsTheKeysOfFewQueriesOnly) {
  cuda::DeviceFacts hopper;
  hopper.compute_major = 9;
  hopper.multiprocessors = 132;
  const auto parts = [&](std::int64_t batch, std::int64_t queries, std::int64_t keys) {
    return PlanPrefill({batch, batch * queries, queries, 32, 8, 128, keys}, hopper);
  };
  EXPECT_EQ(parts(1, 16, 32768), 16);  // of 8 thread blocks
  EXPECT_EQ(parts(1, 32, 32768), 16);
  EXPECT_EQ(parts(16, 4, 4096), 1);
  EXPECT_EQ(parts(1, 128, 128), 1);
  EXPECT_EQ(parts(1, 16384, 16384), 1);
  EXPECT_EQ(parts(0, 16, 32768), 1);
  EXPECT_EQ(parts(1, 16, 0), 1);
  hopper.compute_major = 8;
  EXPECT_EQ(parts(1, 16, 32768), 1);
}

TEST(AttentionPrefillPlan, AThreadBlockHasAGroupOfHeadsWhereThatTakesFewerBlocks) {
  EXPECT_EQ(PrefillTileHeads(16, 4), 4);
  EXPECT_EQ(PrefillTileHeads(96, 4), 4);
  EXPECT_EQ(PrefillTileHeads(97, 4), 1);
  EXPECT_EQ(PrefillTileHeads(129, 4), 1);
  EXPECT_EQ(PrefillTileHeads(1, 1), 1);
  EXPECT_EQ(PrefillTileHeads(1, 128), 128);
  EXPECT_EQ(PrefillTileHeads(1, 129), 1);
  EXPECT_EQ(PrefillTileHeads(16, 7), 7);
}

}  // namespace
}  // namespace ferry::kernels
