// Fuzzes what agents of the NIXL back end read from each other: metadata, identities, and the
// pieces of notifications.

#include <algorithm>
#include <string>
#include <string_view>

#include "ferry/core/check.h"
#include "plugins/nixl/peers/wire.h"
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

void CheckIdentity(Script* script) {
  const auto bytes = script->Rest();
  const auto parsed = nixl::Identity::Parse(bytes);
  if (!parsed) return;
  FERRY_CHECK(parsed->agent.size() <= nixl::kMaxNameBytes);
  FERRY_CHECK(parsed->Serialize() == bytes, bytes.size());
}

void CheckPiece(Script* script) {
  const auto frame = script->Rest();
  const auto parsed = nixl::ParsePiece(frame);
  if (!parsed) return;
  FERRY_CHECK(parsed->header.offset <= parsed->header.total &&
              parsed->bytes.size() <= parsed->header.total - parsed->header.offset);
  FERRY_CHECK(nixl::PieceFrame(parsed->header, parsed->bytes) == frame, frame.size());
}

// One text, sent as an honest sender sends it, of which some pieces are lost, repeated or have
// another header.
class Text {
 public:
  Text(Script* script, std::uint64_t* sequence)
      : script_(script),
        sequence_(sequence),
        text_(script->U32() % (2 * nixl::kMaxPieceBytes + 2), static_cast<char>(script->U8())) {}

  // False after the first piece that ends the conversation.
  bool Join(nixl::Joiner* joiner) {
    do {
      if (!JoinPiece(joiner)) return false;
    } while (offset_ < text_.size());
    return true;
  }

 private:
  bool JoinPiece(nixl::Joiner* joiner) {
    const auto piece = std::string_view(text_).substr(offset_, nixl::kMaxPieceBytes);
    const auto header = Header();
    const auto frame = nixl::PieceFrame(header, piece);
    const auto parsed = nixl::ParsePiece(frame);  // refers to the frame
    if (!parsed) return false;                    // the receiver closes the connection
    if (!joiner->IsNext(header)) return true;
    const auto joined = joiner->Add(*parsed);
    if (!joined) return false;
    const bool is_honest = header.offset == offset_ && header.total == text_.size();
    FERRY_CHECK(joiner->size() <= nixl::kMaxMessageBytes);
    ++*sequence_;
    offset_ += piece.size();
    if (!is_honest) return false;
    const bool is_whole = offset_ == text_.size();
    FERRY_CHECK(joined->has_value() == is_whole);
    if (is_whole) FERRY_CHECK(**joined == text_, text_.size());
    return true;
  }

  nixl::PieceHeader Header() {
    nixl::PieceHeader header{.sequence = *sequence_, .offset = offset_, .total = text_.size()};
    const std::uint8_t changed = script_->U8();
    if (changed == 1) header.sequence = script_->U64();
    if (changed == 2) header.offset = script_->U64();
    if (changed == 3) header.total = script_->U64();
    return header;
  }

  Script* const script_;
  std::uint64_t* const sequence_;  // of the next piece
  const std::string text_;
  std::size_t offset_ = 0;
};

// A message is joined exactly where its pieces came one after the other.
void CheckJoining(Script* script) {
  nixl::Joiner joiner;
  std::uint64_t sequence = 0;
  for (int texts = 0; texts < 4 && !script->empty(); ++texts) {
    if (!Text(script, &sequence).Join(&joiner)) return;
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
    case 2: CheckIdentity(&script); break;
    case 3: CheckPiece(&script); break;
    default: CheckJoining(&script); break;
  }
  return 0;
}
