// Fuzzes the messages of `ferry transfer` and `ferry perf`: text that is taken lies within the
// bounds that the other side relies on, and is unchanged after it is written and read again.

#include <algorithm>
#include <string>

#include "ferry/core/check.h"
#include "tests/fuzz/script.h"
#include "tools/support/json.h"
#include "tools/transfer/messages.h"

namespace ferry::fuzz {
namespace {

using tools::Json;

void CheckRequest(const Json& message, bool dot_files) {
  const auto request = tools::ParseRequest(message, dot_files);
  if (!request) return;
  if (!request->file) {
    FERRY_CHECK(request->size <= tools::kMaxMessage, request->size);
    return;
  }
  const std::string& name = *request->file;
  // Opened in a folder, it is a file of that folder.
  FERRY_CHECK(!name.empty() && name != "." && name != "..", name);
  FERRY_CHECK(name.find_first_of(std::string("/\\\0", 3)) == std::string::npos, name);
  FERRY_CHECK(dot_files || name.front() != '.', name);
}

void CheckStep(const Json& message, std::uint64_t taken, std::uint64_t size, std::uint64_t window) {
  const auto step = tools::ParseStep(message, taken, size, window);
  if (!step) return;
  FERRY_CHECK(step->bytes >= taken && step->bytes <= size && step->bytes - taken <= window,
              step->bytes, taken, size, window);
  FERRY_CHECK(!step->landed || step->bytes == size, step->bytes, size);
}

void CheckAnswer(const Json& message, std::uint64_t size) {
  const auto place = tools::ParseAnswer(message, size);
  if (!place) return;
  FERRY_CHECK(place->window > 0 && place->window <= size, place->window, size);
  const Json again{{"key", tools::ToHex(place->key)}};
  FERRY_CHECK(*tools::BytesField(again, "key") == place->key);
}

}  // namespace
}  // namespace ferry::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ferry::fuzz;  // NOLINT(google-build-using-namespace): its name is C's
  Script script(data, size);
  const std::uint8_t how = script.U8();
  const auto number = [&](int bit) {
    return (how & bit) != 0 ? script.U64() : std::uint64_t{script.U8()};
  };
  const std::uint64_t file_size = number(1);
  const std::uint64_t taken = std::min(number(2), file_size);
  const std::uint64_t window = number(4);
  const auto bytes = script.Rest();
  std::string text(bytes.size(), '\0');
  if (!text.empty()) std::memcpy(text.data(), bytes.data(), text.size());
  const auto message = ferry::tools::ParseJson(text);
  if (!message) return 0;
  CheckRequest(*message, (how & 8) != 0);
  CheckStep(*message, taken, file_size, window);
  CheckAnswer(*message, file_size);
  (void)ferry::tools::ErrorFromJson(*message);
  (void)ferry::tools::BoundedField(*message, "depth", 1, 9);
  (void)ferry::tools::RealField(*message, "cpu_seconds");
  const auto again = ferry::tools::ParseJson(ferry::tools::DumpJson(*message));
  FERRY_CHECK(again && *again == *message, text);
  return 0;
}
