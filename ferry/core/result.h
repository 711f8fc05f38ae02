// Error, Result and Status: how every fallible call of the library returns.
#pragma once
#include <string>
#include <utility>
#include <variant>

namespace ferry {

// Where an Error was created. Builtins instead of std::source_location, which clang 14 (the lint
// build) cannot parse; they work in g++ 12, clang 14 and nvcc 13.
struct SourceLoc {
  const char* file;
  int line;
  static constexpr SourceLoc Current(const char* f = __builtin_FILE(),
                                     int l = __builtin_LINE()) noexcept {
    return {f, l};
  }
};

// How the caller can react to an error. The values are on the wire (docs/wire.md): never renumber.
enum class Code : unsigned char {
  kInvalidArgument = 1,  // the call is wrong; repeating it cannot help
  kUnsupported = 2,      // this build, provider or machine cannot; another may
  kUnavailable = 3,      // out of a resource for now; back off and retry
  kRefused = 4,          // the other side denied the access; get a fresh key or other rights
  kCancelled = 5,        // ended by this side's own Cancel() or Close()
  kTimedOut = 6,         // the deadline passed; the connection may still be good
  kPeerLost = 7,         // this connection is dead; reconnect; others are not affected
  kDeviceLost = 8,       // every connection on this GPU or NIC is dead
  kCorrupt = 9,          // bytes that do not follow the protocol; the connection was ended
  kInternal = 10,        // a bug of ours; report it
};

// The enumerator without its k, as printed and logged: "PeerLost".
const char* CodeName(Code code) noexcept;

// A code and one sentence that contains the values and the fix.
class [[nodiscard]] Error {
 public:
  Error(Code code, std::string message, SourceLoc at = SourceLoc::Current())
      : code_(code), message_(std::move(message)), at_(at) {}

  Code code() const noexcept { return code_; }
  const std::string& message() const noexcept { return message_; }
  SourceLoc where() const noexcept { return at_; }
  // "PeerLost: <message>"
  std::string ToString() const;

 private:
  Code code_;
  std::string message_;
  SourceLoc at_;
};

// A value or an Error. The subset of std::expected's interface that we use, so that an alias can
// replace it once every compiler of ours has std::expected.
template <class T>
class [[nodiscard]] Result {
 public:
  using value_type = T;
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}      // NOLINT: implicit
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT: implicit

  bool has_value() const noexcept { return state_.index() == 0; }
  explicit operator bool() const noexcept { return has_value(); }
  T& operator*() & { return *std::get_if<0>(&state_); }
  const T& operator*() const& { return *std::get_if<0>(&state_); }
  T&& operator*() && { return std::move(*std::get_if<0>(&state_)); }
  T* operator->() { return std::get_if<0>(&state_); }
  const T* operator->() const { return std::get_if<0>(&state_); }
  Error& error() & { return *std::get_if<1>(&state_); }
  const Error& error() const& { return *std::get_if<1>(&state_); }
  Error&& error() && { return std::move(*std::get_if<1>(&state_)); }

 private:
  std::variant<T, Error> state_;
};

struct Void {};
using Status = Result<Void>;
inline Status Ok() { return Void{}; }

}  // namespace ferry

#define FERRY_CAT2(a, b) a##b
#define FERRY_CAT(a, b) FERRY_CAT2(a, b)

// Returns the error of `expr` (a Status or Result) from the enclosing function, if there is one.
#define FERRY_TRY(expr)                                                     \
  do {                                                                      \
    if (auto ferry_r = (expr); !ferry_r) return std::move(ferry_r).error(); \
  } while (0)

// FERRY_TRY_ASSIGN(UniqueFd fd, OpenSocket(peer));
#define FERRY_TRY_ASSIGN(decl, expr) FERRY_TRY_ASSIGN_(FERRY_CAT(ferry_r_, __LINE__), decl, expr)
#define FERRY_TRY_ASSIGN_(r, decl, expr) \
  auto r = (expr);                       \
  if (!r) return std::move(r).error();   \
  decl = *std::move(r)
