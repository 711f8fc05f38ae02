// Fuzzes every decoder of bytes or text from other machines: accepted values are unchanged after
// they are written and read again, and accesses are those that a simple model allows.

#include <cctype>
#include <string>
#include <string_view>

#include "ferry/core/check.h"
#include "ferry/core/config.h"
#include "ferry/core/units.h"
#include "ferry/net/address.h"
#include "ferry/transfer/endpoint.h"
#include "ferry/transfer/memory/region_table.h"
#include "ferry/transfer/region.h"
#include "tests/fuzz/script.h"

namespace ferry::fuzz {
namespace {

using transfer::EndpointAddress;
using transfer::RemoteRegion;
using transfer::Rights;

std::string TextOf(std::span<const std::byte> bytes) {
  std::string text(bytes.size(), '\0');
  if (!text.empty()) std::memcpy(text.data(), bytes.data(), text.size());
  return text;
}

void CheckRegionKey(Script* script) {
  const auto bytes = script->Rest();
  const auto parsed = RemoteRegion::Parse(bytes);
  if (!parsed) return;
  const auto written = parsed->Serialize();
  FERRY_CHECK(written.size() == bytes.size(), written.size(), bytes.size());
  const auto again = RemoteRegion::Parse(written);
  FERRY_CHECK(again.has_value());
  FERRY_CHECK(again->endpoint == parsed->endpoint && again->rights == parsed->rights &&
              again->length == parsed->length && again->key.region == parsed->key.region &&
              again->key.generation == parsed->key.generation &&
              again->key.token == parsed->key.token);
}

void CheckEndpointAddress(Script* script) {
  const auto bytes = script->Rest();
  const auto parsed = EndpointAddress::Parse(bytes);
  if (!parsed) return;
  FERRY_CHECK(parsed->Serialize() == bytes, bytes.size());
}

void CheckAddress(Script* script) {
  const std::uint16_t port = script->U16();
  const std::string text = TextOf(script->Rest());
  const auto parsed = net::ParseAddress(text, port);
  if (parsed) {
    // "*" is how no host is shown; a host with a bracket is none, which Resolve() finds out.
    const bool plain =
        !parsed->host.empty() && parsed->host.find_first_of("[]") == std::string::npos;
    const auto again = net::ParseAddress(parsed->ToString(), 0);
    FERRY_CHECK(!plain || (again && *again == *parsed), parsed->ToString());
    const auto raw = net::ToRaw(*parsed);
    if (raw) {
      const net::Address numeric = net::FromRaw(*raw);
      FERRY_CHECK(numeric.port == parsed->port, numeric.ToString());
      const auto same = net::ToRaw(numeric);
      FERRY_CHECK(same && net::FromRaw(*same) == numeric, numeric.ToString());
    }
  }
}

void CheckUnits(Script* script) {
  const std::string text = TextOf(script->Rest());
  if (const auto size = ParseSize(text)) {
    const auto again = ParseSize(FormatSize(*size));
    FERRY_CHECK(again && *again == *size, *size, FormatSize(*size));
  }
  if (const auto duration = ParseDuration(text)) {
    FERRY_CHECK(duration->count() >= 0, duration->count());
    const auto again = ParseDuration(FormatDuration(*duration));
    FERRY_CHECK(again && *again == *duration, duration->count());
  }
}

// Settings by position, or by a name of the fuzzer's. The text that a setting is shown as sets it
// to the same again, but for that of the secret, which is not shown.
void CheckConfig(Script* script) {
  static const auto rows = Config().Describe();
  Config config;
  auto before = rows;
  for (int steps = 0; steps < 8 && !script->empty(); ++steps) {
    const std::size_t row = script->Below(rows.size() + 1);
    const std::string name = row < rows.size() ? rows[row].name : TextOf(script->Bytes(12));
    const std::string text = TextOf(script->Bytes(script->U8() % 40));
    const bool set = config.Set(name, text).has_value();
    auto after = config.Describe();
    for (std::size_t i = 0; i < after.size(); ++i) {
      const bool named = set && after[i].name == name;
      FERRY_CHECK(named || after[i].value == before[i].value, name, after[i].name);
      if (!named || name == "secret") continue;
      Config other;
      FERRY_CHECK(other.Set(name, after[i].value).has_value(), name, after[i].value);
      FERRY_CHECK(other.Describe()[i].value == after[i].value, name, after[i].value);
    }
    before = std::move(after);
  }
  (void)config.Validate();
}

// A table of four regions whose memory is never touched, so it may be anywhere.
struct Table {
  transfer::RegionTable table;
  std::vector<std::byte> memory = std::vector<std::byte>(300);
  std::vector<std::shared_ptr<transfer::RegionState>> regions;  // the table's
  std::vector<bool> removed;
  int owner = 0;

  explicit Table(Script* script) {
    for (std::size_t i = 0; i < 4; ++i) {
      const std::uint8_t how = script->U8();
      auto added = table.Add(std::span(memory).subspan(i * 60, 1 + how % 60),
                             static_cast<Rights>(how >> 6), (how & 32) != 0 ? &owner : nullptr);
      FERRY_CHECK(added.has_value());
      regions.push_back(*std::move(added));
      removed.push_back(false);
      if ((how & 16) == 0) continue;
      table.Remove(regions.back());
      removed.back() = true;
    }
  }

  // Whether a peer may have this, by the rules of docs/wire.md alone.
  bool Allows(const transfer::wire::KeyBody& key, Rights wanted, const void* by) const {
    for (std::size_t i = 0; i < regions.size(); ++i) {
      const transfer::RegionState& region = *regions[i];
      if (removed[i] || region.id != key.region || region.generation != key.generation) continue;
      return region.token == key.token && (region.only_for == nullptr || region.only_for == by) &&
             Includes(region.rights, wanted);
    }
    return false;
  }
};

void CheckBlocks(Script* script, const transfer::RegionState& region) {
  std::vector<std::byte> blocks;
  __extension__ using Wide = unsigned __int128;
  Wide sum = 0;
  bool inside = true;
  bool empty = false;
  for (std::size_t left = script->Below(8); left > 0; --left) {
    transfer::wire::BlockOnWire block;
    const bool near = (script->U8() & 1) != 0;
    block.offset = near ? script->U8() % 70 : script->U64();
    block.length = near ? script->U8() % 70 : script->U64();
    transfer::wire::Append(&blocks, block);
    sum += block.length;
    inside = inside && Wide{block.offset} + block.length <= region.memory.size();
    empty = empty || block.length == 0;
  }
  const std::uint64_t bytes =
      (script->U8() & 1) != 0 ? script->U64() : static_cast<std::uint64_t>(sum);
  std::vector<iovec> pieces;
  const auto placed = transfer::PlaceBlocks(region, blocks, bytes, &pieces);
  FERRY_CHECK(placed.has_value() == (inside && !empty && sum == bytes), bytes, inside, empty);
  if (!placed) return;
  for (const iovec& piece : pieces) {
    const auto* at = static_cast<const std::byte*>(piece.iov_base);
    FERRY_CHECK(at >= region.memory.data() &&
                at + piece.iov_len <= region.memory.data() + region.memory.size());
  }
}

void CheckAccess(Script* script) {
  Table table(script);
  while (!script->empty()) {
    const transfer::RegionState& region = *table.regions[script->Below(table.regions.size())];
    transfer::wire::KeyBody key{region.id, region.generation, region.token};
    const std::uint8_t how = script->U8();
    if ((how & 1) != 0) key.region += script->U32();
    if ((how & 2) != 0) key.generation += script->U32();
    if ((how & 4) != 0) key.token ^= script->U64();
    const auto wanted = static_cast<Rights>((how >> 3) & 3);
    const void* const by = (how & 32) != 0 ? &table.owner : nullptr;
    const auto opened = table.table.Open(key, wanted, {by, {}});
    FERRY_CHECK(opened.has_value() == table.Allows(key, wanted, by), key.region, key.generation);
    if (opened) CheckBlocks(script, *opened->get());
  }
}

void CheckText(Script* script) {
  const auto bytes = script->Rest();
  transfer::wire::MetaReader reader(bytes);
  const std::string text = reader.Text();
  FERRY_CHECK(text.size() <= transfer::wire::kMaxTextBytes, text.size());
  for (const char c : text) FERRY_CHECK(std::isprint(static_cast<unsigned char>(c)) != 0);
}

}  // namespace
}  // namespace ferry::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ferry::fuzz;  // NOLINT(google-build-using-namespace): its name is C's
  Script script(data, size);
  switch (script.Below(7)) {
    case 0: CheckRegionKey(&script); break;
    case 1: CheckEndpointAddress(&script); break;
    case 2: CheckAddress(&script); break;
    case 3: CheckUnits(&script); break;
    case 4: CheckConfig(&script); break;
    case 5: CheckAccess(&script); break;
    default: CheckText(&script); break;
  }
  return 0;
}
