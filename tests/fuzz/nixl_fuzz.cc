// Fuzzes what agents of the NIXL back end read from each other: metadata, the first frame of a
// connection, and the pieces of notifications.

#include <algorithm>
#include <string>
#include <string_view>

#include "bindings/nixl/wire.h"
#include "ferry/core/check.h"
#include "tests/fuzz/script.h"

namespace ferry::fuzz {
namespace {

std::string TextOf(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// What was accepted is the same bytes again.
template <class Info>
void CheckMetadata(Script* script) {
  const std::string text = TextOf(script->Rest());
  const auto parsed = Info::Parse(text);
  if (parsed) FERRY_CHECK(parsed->Serialize() == text, text.size());
}

void CheckHello(Script* script) {
  const auto frame = script->Rest();
  const auto parsed = nixl::ParseHello(frame);
  if (!parsed) return;
  FERRY_CHECK(parsed->agent.size() <= nixl::kMaxNameBytes);
  FERRY_CHECK(nixl::HelloFrame(*parsed) == frame, frame.size());
}

void CheckPiece(Script* script) {
  const auto frame = script->Rest();
  const auto parsed = nixl::ParsePiece(frame);
  if (!parsed) return;
  FERRY_CHECK(parsed->header.offset <= parsed->header.total &&
              parsed->bytes.size() <= parsed->header.total - parsed->header.offset);
  FERRY_CHECK(nixl::PieceFrame(parsed->header, parsed->bytes) == frame, frame.size());
}

// Pieces as an honest sender makes them, of which some are lost, come twice or have another header.
// A message is joined exactly where its pieces came one after the other.
void CheckJoining(Script* script) {
  nixl::Joiner joiner;
  std::uint64_t sequence = 0;
  for (int texts = 0; texts < 4 && !script->empty(); ++texts) {
    const std::string text(script->U32() % (2 * nixl::kMaxPieceBytes + 2),
                           static_cast<char>(script->U8()));
    std::size_t offset = 0;
    bool over = false;
    while (!over) {
      const auto piece = std::string_view(text).substr(offset, nixl::kMaxPieceBytes);
      nixl::PieceHeader header{.sequence = sequence, .offset = offset, .total = text.size()};
      const std::uint8_t how = script->U8();
      if (how == 1) header.sequence = script->U64();
      if (how == 2) header.offset = script->U64();
      if (how == 3) header.total = script->U64();
      const auto frame = nixl::PieceFrame(header, piece);
      const auto parsed = nixl::ParsePiece(frame);
      if (!parsed) return;  // the receiver closes the connection
      if (!joiner.IsNext(header)) continue;
      const auto joined = joiner.Add(*parsed);
      if (!joined) return;
      const bool plain = header.offset == offset && header.total == text.size();
      FERRY_CHECK(joiner.size() <= nixl::kMaxMessageBytes);
      ++sequence;
      offset += piece.size();
      over = offset == text.size();
      if (!plain) return;
      FERRY_CHECK(joined->has_value() == over);
      if (over) FERRY_CHECK(**joined == text, text.size());
    }
  }
}

}  // namespace
}  // namespace ferry::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ferry::fuzz;  // NOLINT(google-build-using-namespace): its name is C's
  Script script(data, size);
  switch (script.Below(5)) {
    case 0: CheckMetadata<ferry::nixl::ConnectionInfo>(&script); break;
    case 1: CheckMetadata<ferry::nixl::MemoryInfo>(&script); break;
    case 2: CheckHello(&script); break;
    case 3: CheckPiece(&script); break;
    default: CheckJoining(&script); break;
  }
  return 0;
}
