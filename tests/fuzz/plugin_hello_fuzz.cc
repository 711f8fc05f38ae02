// Fuzzes the frames by which two sides agree on a network plugin.

#include <cctype>
#include <optional>

#include "ferry/core/check.h"
#include "ferry/tcpx/lane/lane_hello_wire.h"
#include "tests/fuzz/script.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ferry::net::plugin;  // NOLINT(google-build-using-namespace): its name is C's
  ferry::fuzz::Script script(data, size);
  LaneHello mine;
  mine.plugin = "p";
  mine.plugin_version = script.U8();
  mine.chunk_bytes = script.U64();
  mine.tag_base = script.U8();
  mine.has_secret = (mine.tag_base & 1) != 0;
  const auto bytes = script.Rest();
  const auto theirs = UnpackLaneHello(bytes, "peer");
  if (!theirs) {
    FERRY_CHECK(!theirs.error().message().empty());
    return 0;
  }
  for (const std::string* text : {&theirs->plugin, &theirs->text}) {
    for (const char c : *text) FERRY_CHECK(std::isprint(static_cast<unsigned char>(c)) != 0);
  }
  const auto again = UnpackLaneHello(Pack(*theirs), "peer");
  FERRY_CHECK(again && again->kind == theirs->kind && again->plugin == theirs->plugin &&
              again->plugin_version == theirs->plugin_version &&
              again->chunk_bytes == theirs->chunk_bytes && again->tag_base == theirs->tag_base &&
              again->has_secret == theirs->has_secret &&
              again->process.pid == theirs->process.pid && again->nonce == theirs->nonce &&
              again->handle == theirs->handle && again->mac == theirs->mac &&
              again->text == theirs->text);
  // Every byte but the mac's own is signed.
  const auto frame = Pack(*theirs);
  const auto before = std::span(bytes).first(bytes.size() / 2);
  static const std::optional<ferry::Secret> secret(ferry::SecretText("sixteen letters!"));
  const ferry::Mac mac = LaneMac(secret, before, frame);
  auto altered = frame;
  SetMac(mac, &altered);
  FERRY_CHECK(LaneMac(secret, before, altered) == mac);
  altered[mine.plugin_version] ^= std::byte{1};
  FERRY_CHECK(LaneMac(secret, before, altered) != mac);
  const bool same = theirs->plugin == mine.plugin &&
                    theirs->plugin_version == mine.plugin_version &&
                    theirs->chunk_bytes == mine.chunk_bytes && theirs->tag_base == mine.tag_base &&
                    theirs->has_secret == mine.has_secret;
  FERRY_CHECK(CheckFits(mine, *theirs, "peer").has_value() == same);
  return 0;
}
