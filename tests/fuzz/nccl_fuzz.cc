// Fuzzes what NCCL's network plugin reads from other ranks: handles, hellos and the metadata of
// frames.

#include <algorithm>
#include <array>
#include <cstring>

#include "ferry/core/check.h"
#include "plugins/nccl/rank.h"
#include "plugins/nccl/wire.h"
#include "tests/fuzz/script.h"

namespace ferry::fuzz {
namespace {

using nccl_net::FrameType;
using Handle = std::array<std::byte, nccl_net::abi::kHandleBytes>;

void CheckHandle(Script* script) {
  Handle handle{};
  const auto bytes = script->Bytes(handle.size());
  std::copy(bytes.begin(), bytes.end(), handle.begin());
  const std::uint64_t attempt = script->U64();
  const auto read = nccl_net::ReadHandle(handle.data());
  if (!read) return;
  FERRY_CHECK(!read->at.empty() && read->at.size() <= nccl_net::kMaxAddresses, read->at.size());
  Handle again{};
  FERRY_CHECK(nccl_net::WriteHandle(*read, again.data()).has_value());
  const auto same = nccl_net::ReadHandle(again.data());
  FERRY_CHECK(same && same->listen == read->listen && same->key == read->key &&
              same->at == read->at);
  nccl_net::SetAttempt(handle.data(), attempt);
  FERRY_CHECK(nccl_net::AttemptOf(handle.data()) == attempt, attempt);
  const auto differs = nccl_net::FindDifference({}, read->rank, "peer");
  if (differs) FERRY_CHECK(!differs->message().empty());
}

void CheckHello(Script* script) {
  const auto body = script->Rest();
  const auto head = nccl_net::LoadHelloHead(body);
  const auto whole = nccl_net::LoadWire<nccl_net::HelloWire>(body);
  FERRY_CHECK(head.has_value() == (body.size() >= offsetof(nccl_net::HelloWire, comm)));
  FERRY_CHECK(whole.has_value() == (body.size() == sizeof(nccl_net::HelloWire)));
  if (!whole) return;
  FERRY_CHECK(head->listen == whole->listen && head->version == whole->version);
  (void)nccl_net::FindDifference({}, whole->rank, "peer");
  (void)nccl_net::OtherVersion(whole->version, "peer");
}

void CheckPadded(Script* script) {
  const auto meta = script->Rest();
  const auto wire = nccl_net::LoadPadded(meta);
  FERRY_CHECK(wire.has_value() ==
              (meta.size() >= sizeof(nccl_net::DataWire) && meta.size() <= nccl_net::kMinFrame));
  if (!wire) return;
  std::vector<std::byte> stored;
  nccl_net::StorePadded(*wire, nccl_net::kMinFrame - meta.size(), &stored);
  const auto again = nccl_net::LoadPadded(stored);
  FERRY_CHECK(again && again->tag == wire->tag && again->sequence == wire->sequence &&
              again->total == wire->total && again->offset == wire->offset);
}

void CheckCounts(Script* script) {
  const FrameType type = (script->U8() & 1) != 0 ? FrameType::kCredit : FrameType::kAsk;
  const auto meta = script->Rest();
  const auto counts = nccl_net::LoadCounts(type, meta);
  if (!counts) return;
  FERRY_CHECK(meta.size() == sizeof(nccl_net::CountsWire) + std::span(*counts).size_bytes());
  std::vector<std::byte> stored;
  nccl_net::StoreCounts(type, *counts, &stored);
  const auto again = nccl_net::LoadCounts(type, stored);
  FERRY_CHECK(again && again->size() == counts->size());
  FERRY_CHECK(counts->empty() ||
              std::memcmp(again->data(), counts->data(), std::span(*counts).size_bytes()) == 0);
}

}  // namespace
}  // namespace ferry::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ferry::fuzz;  // NOLINT(google-build-using-namespace): its name is C's
  Script script(data, size);
  switch (script.Below(4)) {
    case 0: CheckHandle(&script); break;
    case 1: CheckHello(&script); break;
    case 2: CheckPadded(&script); break;
    default: CheckCounts(&script); break;
  }
  return 0;
}
