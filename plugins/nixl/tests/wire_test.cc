// Tests that what peers send is read within its bounds.
#include "plugins/nixl/peers/wire.h"

#include <fmt/core.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <functional>

#include "tests/support/peer_process.h"

namespace ferry::nixl {
namespace {

// Copies bytes to the end of a page before one that cannot be read: whoever reads on is killed.
class BytesBeforeAHole {
 public:
  BytesBeforeAHole() : page_(static_cast<std::size_t>(::sysconf(_SC_PAGESIZE))) {
    void* const mapped =
        ::mmap(nullptr, 2 * page_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) throw std::bad_alloc();
    begin_ = static_cast<std::byte*>(mapped);
    (void)::mprotect(begin_ + page_, page_, PROT_NONE);
  }
  ~BytesBeforeAHole() { (void)::munmap(begin_, 2 * page_); }
  BytesBeforeAHole(const BytesBeforeAHole&) = delete;
  BytesBeforeAHole& operator=(const BytesBeforeAHole&) = delete;

  std::span<const std::byte> Copy(std::span<const std::byte> bytes) {
    std::byte* const to = begin_ + page_ - bytes.size();
    if (!bytes.empty()) std::memcpy(to, bytes.data(), bytes.size());
    return {to, bytes.size()};
  }

 private:
  const std::size_t page_;
  std::byte* begin_ = nullptr;
};

std::string_view Text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
std::vector<std::byte> Raw(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

struct Reader {
  const char* name;
  std::vector<std::byte> valid;
  std::function<bool(std::span<const std::byte>)> accepts;
};

std::vector<Reader> Readers() {
  ConnectionInfo connection{
      .address = {.endpoint = Uuid::Random(), .at = {{"192.0.2.1", 7}, {"2001:db8::1", 8}}},
      .secret = Uuid::Random()};
  MemoryInfo memory;
  memory.region.endpoint = connection.address.endpoint;
  memory.region.length = 4096;
  return {
      {"connection", Raw(connection.Serialize()),
       [](auto bytes) { return ConnectionInfo::Parse(Text(bytes)).has_value(); }},
      {"memory", Raw(memory.Serialize()),
       [](auto bytes) { return MemoryInfo::Parse(Text(bytes)).has_value(); }},
      {"identity", Identity{.agent = "agent"}.Serialize(),
       [](auto bytes) { return Identity::Parse(bytes).has_value(); }},
      {"piece", PieceFrame({.total = 5}, "piece"),
       [](auto bytes) { return ParsePiece(bytes).has_value(); }},
  };
}

TEST(NixlWireTest, NothingIsReadBeyondBytesThatWereCutShort) {
  BytesBeforeAHole memory;
  for (const Reader& reader : Readers()) {
    EXPECT_TRUE(reader.accepts(memory.Copy(reader.valid))) << reader.name;
    for (std::size_t bytes = 0; bytes < reader.valid.size(); ++bytes) {
      const bool accepted = reader.accepts(memory.Copy(std::span(reader.valid).first(bytes)));
      // An agent's name may have any length.
      EXPECT_TRUE(!accepted || reader.name == std::string_view("identity")) << reader.name << bytes;
    }
  }
}

TEST(NixlWireTest, NothingIsReadBeyondBytesWithChangedLengths) {
  BytesBeforeAHole memory;
  for (const Reader& reader : Readers()) {
    for (std::size_t i = 0; i < reader.valid.size(); ++i) {
      for (const unsigned value : {0U, 1U, 0x7fU, 0x80U, 0xffU}) {
        std::vector<std::byte> changed = reader.valid;
        changed[i] = static_cast<std::byte>(value);
        (void)reader.accepts(memory.Copy(changed));
      }
    }
  }
}

TEST(NixlWireTest, AnAgentsNameHasALimit) {
  const auto accepts = [](std::size_t bytes) {
    return Identity::Parse(Identity{.agent = std::string(bytes, 'a')}.Serialize()).has_value();
  };
  EXPECT_TRUE(accepts(kMaxNameBytes));
  EXPECT_FALSE(accepts(kMaxNameBytes + 1));
}

TEST(NixlWireTest, APieceThatIsNotAsLongAsItMayBeIsRefused) {
  const std::string full(kMaxPieceBytes, 'a');
  const auto accepts = [](const PieceHeader& header, std::string_view bytes) {
    return ParsePiece(PieceFrame(header, bytes)).has_value();
  };
  EXPECT_TRUE(accepts({.total = 0}, ""));
  EXPECT_TRUE(accepts({.total = kMaxPieceBytes + 1}, full));
  EXPECT_TRUE(accepts({.offset = kMaxPieceBytes, .total = kMaxPieceBytes + 1}, "a"));
  EXPECT_FALSE(accepts({.total = kMaxPieceBytes + 1}, "a"));
  EXPECT_FALSE(accepts({.total = 2}, "a"));
  EXPECT_FALSE(accepts({.total = 2}, "aaa"));
  EXPECT_FALSE(accepts({.offset = 2, .total = 2}, ""));
  EXPECT_FALSE(accepts({.offset = 3, .total = 2}, ""));
  EXPECT_FALSE(accepts({.offset = 1, .total = 0}, ""));
  EXPECT_FALSE(accepts({.offset = ~std::uint64_t{0}, .total = 1}, "aa"));
}

TEST(NixlWireTest, PiecesThatDoNotContinueEachOtherAreRefused) {
  const std::string full(kMaxPieceBytes, 'a');
  constexpr std::uint64_t kTotal = kMaxPieceBytes + 1;
  const auto second = [&](const PieceHeader& header, std::string_view bytes) {
    Joiner joiner;
    const auto first = joiner.Add({{.sequence = 0, .total = kTotal}, full});
    EXPECT_TRUE(first && !*first);
    EXPECT_EQ(joiner.size(), kMaxPieceBytes);
    const auto joined = joiner.Add({header, bytes});
    return joined && *joined == full + "b";
  };
  EXPECT_TRUE(second({.sequence = 1, .offset = kMaxPieceBytes, .total = kTotal}, "b"));
  EXPECT_FALSE(second({.sequence = 2, .offset = kMaxPieceBytes, .total = kTotal}, "b"));
  EXPECT_FALSE(second({.sequence = 1, .offset = 0, .total = 1}, "b"));
  EXPECT_FALSE(second({.sequence = 1, .offset = kMaxPieceBytes, .total = kTotal + 1}, "b"));
  Joiner joiner;
  EXPECT_FALSE(joiner.Add({{.total = kMaxMessageBytes + 1}, full}));
}

}  // namespace
}  // namespace ferry::nixl
