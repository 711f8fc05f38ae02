// Fuzzes the frames by which two sides agree on a network plugin.

#include <cctype>

#include "ferry/core/check.h"
#include "ferry/tcpx/lane/lane_terms_wire.h"
#include "tests/fuzz/script.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ferry::tcpx;  // NOLINT(google-build-using-namespace): its name is C's
  ferry::fuzz::Script script(data, size);
  PluginTerms mine;
  mine.SetPlugin("p");
  mine.plugin_version = script.U8();
  mine.chunk_bytes = script.U64();
  mine.tag_base = script.U8();
  mine.has_secret = mine.tag_base & 1;
  const auto bytes = script.Rest();
  ferry::session::wire::MetaReader reader(bytes);
  const auto theirs = ReadTerms(&reader, "peer");
  if (!theirs) {
    FERRY_CHECK(!theirs.error().message().empty());
    return 0;
  }
  FERRY_CHECK(bytes.size() == sizeof *theirs + reader.rest().size());
  for (const char c : theirs->PluginName()) {
    FERRY_CHECK(std::isprint(static_cast<unsigned char>(c)) != 0);
  }
  const bool same = theirs->PluginName() == mine.PluginName() &&
                    theirs->plugin_version == mine.plugin_version &&
                    theirs->chunk_bytes == mine.chunk_bytes && theirs->tag_base == mine.tag_base &&
                    theirs->has_secret == mine.has_secret;
  FERRY_CHECK(CheckFits(mine, *theirs, "peer").has_value() == same);
  return 0;
}
