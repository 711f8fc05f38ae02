// Binds operations to Python: waiting, polling, cancelling and the eventfd for asyncio.

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>
#include <vector>

#include "python/module/connection.h"
#include "python/module/transfer.h"
#include "python/module/waiting.h"

namespace ferry::python {

namespace nb = nanobind;

namespace {

struct Orphan {
  transfer::Operation operation;
  nb::object memory;
};
// Under the interpreter's lock. Never destroyed, as Python may be gone by then.
std::vector<Orphan>& Orphans() {
  static auto* const orphans = new std::vector<Orphan>;
  return *orphans;
}

}  // namespace

void Adopt(transfer::Operation operation, nb::object memory) {
  Orphans().push_back({std::move(operation), std::move(memory)});
}

void LetGo(std::size_t most) {
  auto& orphans = Orphans();
  most = std::min(most, orphans.size());
  if (most == 0) return;
  // Out of the list first: what goes with their memory may come back here.
  std::vector<Orphan> looked_at;
  const auto end = orphans.begin() + static_cast<std::ptrdiff_t>(most);
  std::move(orphans.begin(), end, std::back_inserter(looked_at));
  orphans.erase(orphans.begin(), end);
  std::vector<bool> ended(looked_at.size());
  {
    const OthersGoOn others_go_on(std::nothrow);
    for (std::size_t i = 0; i < looked_at.size(); ++i) ended[i] = looked_at[i].operation.Poll();
  }
  for (std::size_t i = 0; i < looked_at.size(); ++i) {
    if (!ended[i]) orphans.push_back(std::move(looked_at[i]));
  }
}

Operation::~Operation() {
  // The library may still write the memory, so its Python object has to outlive this one.
  if (memory_.is_valid() && !Done()) Adopt(operation_, std::move(memory_));
}

bool Operation::Done() {
  if (!memory_.is_valid()) return true;
  const bool done = [this] {
    const OthersGoOn others_go_on(std::nothrow);
    return operation_.Poll();
  }();
  // Out of the member first: what goes with it may let other threads come here.
  if (done) const nb::object gone = std::move(memory_);
  return done;
}

std::uint64_t Operation::Wait(std::optional<double> timeout) {
  // Its own end may be a timeout, too.
  Check(WaitInParts(DeadlineOf(timeout), [this](Deadline part) -> Status {
    (void)operation_.Wait(part);
    if (operation_.Poll()) return Ok();
    return Error(Code::kTimedOut,
                 "the operation has not ended in time and goes on; wait again, or cancel() it");
  }));
  { const nb::object gone = std::move(memory_); }
  // It has ended: a deadline in the past returns its own outcome at once.
  Check(operation_.Wait(Deadline::At(Clock::time_point{})));
  return operation_.bytes();
}

namespace {

nb::list TakeCookies(transfer::CompletionQueue& queue) {
  nb::list cookies;
  for (const std::uint64_t cookie : Take(queue.Take())) cookies.append(cookie);
  return cookies;
}

}  // namespace

void BindOperation(nb::module_& module) {
  nb::class_<transfer::CompletionQueue>(module, "_CompletionQueue")
      .def("__init__",
           [](transfer::CompletionQueue* self) {
             new (self) transfer::CompletionQueue(Take(transfer::CompletionQueue::Create()));
           })
      .def("fileno", [](const transfer::CompletionQueue& self) { return Take(self.fd()); })
      .def("watch", [](transfer::CompletionQueue& self, Operation& operation,
                       std::uint64_t cookie) { Check(self.Watch(operation.Get(), cookie)); })
      .def("take", &TakeCookies);
  nb::class_<Operation>(module, "Operation",
                        "A transfer in flight; `await` it, wait() for it or ask done(). Holds the "
                        "memory until its end, whatever becomes of this object.")
      .def("done",
           [](Operation& self) {
             (void)self.Get();
             return self.Done();
           })
      .def("wait", &Operation::Wait, nb::arg("timeout") = nb::none(),
           "Waits for the end and returns the bytes moved; raises the operation's error, or "
           "Timeout after `timeout` seconds, while the operation goes on.")
      .def("cancel",
           [](Operation& self) {
             const OthersGoOn others_go_on;
             self.Get().Cancel();
           })
      .def(
          "fileno", [](Operation& self) { return Take(self.Get().CompletionFd()); },
          "A descriptor that becomes readable at the end.")
      .def(
          "make_stream_wait",
          [](Operation& self, const nb::object& stream, int device) {
            const auto held = StreamOf(stream, nullptr, device);
            if (!held) {
              throw Raised(
                  Error(Code::kInvalidArgument, "stream: None cannot be held back; give a stream"));
            }
            const OthersGoOn others_go_on;
            Check(self.Get().MakeStreamWait(*held));
          },
          nb::arg("stream"), nb::arg("device") = 0,
          "Work queued on this stream of GPU `device` from now on begins after the operation's "
          "end.")
      .def_prop_ro("nbytes", [](Operation& self) { return self.Get().bytes(); })
      .def_prop_ro("tag", [](Operation& self) { return self.Get().tag(); })
      .def_prop_ro("path",
                   [](Operation& self) {
                     const transfer::PathReport report = self.Get().path();
                     return nb::make_tuple(transfer::PathName(report.path), report.why);
                   })
      .def("_ended", [](Operation& self) { return self.Get().Done(); })
      .def("__await__", [](nb::handle self) {
        const nb::object wait = nb::module_::import_("tensorferry._asyncio").attr("wait");
        return wait(self).attr("__await__")();
      });
}

}  // namespace ferry::python
