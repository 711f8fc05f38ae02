// Reads the stand-in's settings from environment variables.

#include "standin/settings.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string_view>

namespace ferry::standin {
namespace {

struct NamedFault {
  std::string_view name;
  Fault fault;
};
constexpr NamedFault kFaults[] = {
    {"isend_rc2", Fault::kIsendRc2},
    {"irecv_rc3", Fault::kIrecvRc3},
    {"test_rc2", Fault::kTestRc2},
    {"exit_no_cmsg", Fault::kExitNoCmsg},
    {"stuck_count", Fault::kStuckCount},
    {"count_stays_zero", Fault::kCountStaysZero},
    {"oversize", Fault::kOversize},
    {"short", Fault::kShort},
    {"overlap", Fault::kOverlap},
    {"out_of_pool", Fault::kOutOfPool},
    {"wrap", Fault::kWrap},
    {"zero_length", Fault::kZeroLength},
    {"slow_peer", Fault::kSlowPeer},
    {"half_close", Fault::kHalfClose},
    {"connect_never", Fault::kConnectNever},
    {"connect_fail", Fault::kConnectFail},
    {"accept_fail", Fault::kAcceptFail},
    {"init_fail", Fault::kInitFail},
    {"no_devices", Fault::kNoDevices},
    {"bad_row", Fault::kBadRow},
};

struct Range {
  std::uint64_t least;
  std::uint64_t most;
};

bool ParseNumber(const char* text, Range range, std::uint64_t* value) {
  char* end = nullptr;
  errno = 0;
  const std::uint64_t parsed = std::strtoull(text, &end, 10);
  if (end == text || *end != '\0' || errno != 0) return false;
  if (parsed < range.least || parsed > range.most) return false;
  *value = parsed;
  return true;
}

// Reads variables one after the other; the first that is wrong is the problem.
class Reader {
 public:
  explicit Reader(std::string* problem) : problem_(problem) {}

  // An empty variable counts as not set, for scripts that cannot remove one.
  const char* Text(const char* name) {
    const char* const text = std::getenv(name);
    return text == nullptr || *text == '\0' ? nullptr : text;
  }

  template <class Number>
  void Read(const char* name, Range range, Number* value) {
    const char* const text = Text(name);
    if (text == nullptr) return;
    std::uint64_t parsed = 0;
    if (!ParseNumber(text, range, &parsed)) return Wrong(name, text);
    *value = static_cast<Number>(parsed);
  }

  void Wrong(const char* name, const char* text) {
    if (good_) *problem_ = std::string(name) + " cannot be '" + text + "'";
    good_ = false;
  }

  bool good() const { return good_; }

 private:
  std::string* problem_;
  bool good_ = true;
};

void ReadPolls(Reader& reader, Settings* settings) {
  const char* const text = reader.Text("FERRY_STANDIN_POLLS");
  if (text != nullptr && std::strcmp(text, "immediate") == 0) {
    settings->immediate = true;
    return;
  }
  reader.Read("FERRY_STANDIN_POLLS", {0, 1'000'000}, &settings->polls);
}

void ReadFragments(Reader& reader, Settings* settings) {
  const char* const text = reader.Text("FERRY_STANDIN_FRAGMENTS");
  if (text == nullptr) return;
  const std::string_view kind = text;
  if (kind == "random") {
    settings->cut = Cut::kRandom;
  } else if (kind == "tiny") {
    settings->cut = Cut::kTiny;
  } else if (kind == "merged") {
    settings->cut = Cut::kMerged;
  } else {
    reader.Read("FERRY_STANDIN_FRAGMENTS", {1, 1024 * 1024}, &settings->fragment);
  }
}

void ReadGpu(Reader& reader, Settings* settings) {
  const char* const text = reader.Text("FERRY_STANDIN_GPU");
  if (text == nullptr) return;
  if (std::strcmp(text, "mapped") == 0) {
    settings->memory = Where::kMapped;
    return;
  }
  bool gpu = false;
  reader.Read("FERRY_STANDIN_GPU", {0, 1}, &gpu);
  if (gpu) settings->memory = Where::kGpu;
}

void ReadFault(Reader& reader, Settings* settings) {
  const char* const text = reader.Text("FERRY_STANDIN_FAULT");
  if (text == nullptr) return;
  std::string_view name = text;
  const std::size_t at = name.find('@');
  if (at != std::string_view::npos) {
    if (!ParseNumber(text + at + 1, {1, 1'000'000'000}, &settings->fault_at)) {
      return reader.Wrong("FERRY_STANDIN_FAULT", text);
    }
    name = name.substr(0, at);
  }
  for (const NamedFault& known : kFaults) {
    if (known.name == name) settings->fault = known.fault;
  }
  if (settings->fault == Fault::kNone) reader.Wrong("FERRY_STANDIN_FAULT", text);
}

}  // namespace

std::optional<Settings> ReadSettings(std::string* problem) {
  constexpr std::uint64_t kMaxPool = std::uint64_t{4} << 30;  // what a Fragment can address
  Settings settings;
  Reader reader(problem);
  reader.Read("FERRY_STANDIN_NICS", {1, 8}, &settings.nics);
  ReadPolls(reader, &settings);
  reader.Read("FERRY_STANDIN_SOCKETS", {1, 8}, &settings.sockets);
  reader.Read("FERRY_STANDIN_CHUNK", {1, 64 * 1024 * 1024}, &settings.chunk);
  reader.Read("FERRY_STANDIN_POOL", {4096, kMaxPool}, &settings.pool);
  reader.Read("FERRY_STANDIN_TOGETHER", {1, 1024}, &settings.together);
  reader.Read("FERRY_STANDIN_SPREAD", {1, 16}, &settings.spread);
  ReadFragments(reader, &settings);
  reader.Read("FERRY_STANDIN_SEED", {0, ~std::uint64_t{0}}, &settings.seed);
  ReadFault(reader, &settings);
  reader.Read("FERRY_STANDIN_DELAY_MS", {0, 60'000}, &settings.delay_ms);
  reader.Read("FERRY_STANDIN_ABORT", {0, 1}, &settings.abort);
  ReadGpu(reader, &settings);
  if (const char* driver = reader.Text("FERRY_STANDIN_DRIVER")) settings.driver = driver;
  if (!reader.good()) return std::nullopt;
  return settings;
}

const char* PluginName() {
  const char* const name = std::getenv("FERRY_STANDIN_NAME");
  return name == nullptr || *name == '\0' ? "GPUDirectTCPX_v7" : name;
}

}  // namespace ferry::standin
