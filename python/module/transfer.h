// Python's view of ferry/transfer: the same names and rules, with exceptions for errors, and
// objects that keep alive the memory they need. Every call that may block releases the GIL; the
// GIL guards all state that has no other documented guard. In a forked child every use of an
// object of the parent raises InvalidArgument; the child may release it.
#pragma once
#include <nanobind/nanobind.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "ferry/core/fork.h"
#include "ferry/transfer/endpoint.h"
#include "python/module/errors.h"
#include "python/module/memory.h"

namespace ferry::python {

class Operation;

// Raises InvalidArgument for an object of a parent of this process: "connection".
inline void RefuseAfterFork(const ProcessMark& made, const char* object) {
  if (made.forked()) throw Raised(MadeBeforeFork(object));
}

// An endpoint and its settings. Shared by all objects that were made from it.
class EndpointHolder {
 public:
  EndpointHolder(transfer::Endpoint endpoint, Config config);
  // Under the interpreter's lock.
  ~EndpointHolder();

  // Errors: Cancelled once it was closed; InvalidArgument in a forked child. The caller may use it
  // without the interpreter's lock.
  std::shared_ptr<transfer::Endpoint> Get() const;
  const Config& config() const noexcept { return config_; }
  // Ends all operations and waits in flight, also those of other threads.
  void Close();

 private:
  std::shared_ptr<transfer::Endpoint> endpoint_;  // with calls in flight; null: closed
  const Config config_;
  const ProcessMark made_;
};
using SharedEndpoint = std::shared_ptr<EndpointHolder>;  // as said there

class Region {
 public:
  Region(SharedEndpoint endpoint, std::unique_ptr<Memory> memory, transfer::Rights rights);
  ~Region();

  const transfer::Region& Get() const;
  const Memory& memory() const;
  // For those who run Python's code meanwhile, in which another thread may deregister the region.
  std::shared_ptr<const Memory> Share() const;
  void Deregister(std::optional<double> timeout);
  nanobind::bytes Key() const;
  nanobind::bytes KeyFor(const std::string& peer, const std::string& rights);
  void Withdraw(const std::string& peer);

 private:
  SharedEndpoint endpoint_;
  std::shared_ptr<const Memory> memory_;  // shared with calls in flight; null: deregistered
  std::optional<transfer::Region> region_;
  const ProcessMark made_;
};

// An operation in flight or ended, with references to the memory that it uses.
class Operation {
 public:
  Operation(SharedEndpoint endpoint, transfer::Operation operation, nanobind::object memory)
      : endpoint_(std::move(endpoint)),
        operation_(std::move(operation)),
        memory_(std::move(memory)) {}
  ~Operation();

  // Whether it has ended, which it has in a forked child; raises nothing.
  bool Done();
  // Waits for the end and returns the bytes moved. Errors: the operation's own; Timeout if it has
  // not ended by then.
  std::uint64_t Wait(std::optional<double> timeout);
  transfer::Operation& Get() {
    RefuseAfterFork(made_, "operation");
    return operation_;
  }

 private:
  SharedEndpoint endpoint_;
  transfer::Operation operation_;
  nanobind::object memory_;  // none: ended
  ProcessMark made_;
};

// Keeps the memory of an operation that nobody has any more, until its end is seen: by LetGo(), or
// when endpoints are closed.
void Adopt(transfer::Operation operation, nanobind::object memory);
// Looks at some of those: few for calls that begin something, which are not to wait for it.
inline constexpr std::size_t kFewOrphans = 8;
void LetGo(std::size_t most = kFewOrphans);

// "r", "w", "rw" or "": what peers may do.
transfer::Rights RightsOf(const std::string& text);
// 32 hex digits, as an endpoint's id.
Uuid EndpointIdOf(const std::string& text);

void BindEndpoint(nanobind::module_& module);
void BindRegion(nanobind::module_& module);
void BindConnection(nanobind::module_& module);
void BindOperation(nanobind::module_& module);

}  // namespace ferry::python
