#include <fmt/core.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/variant.h>

#include <algorithm>
#include <condition_variable>
#include <utility>
#include <variant>

#include "bindings/python/connection.h"
#include "bindings/python/facts.h"
#include "bindings/python/transfer.h"
#include "bindings/python/waiting.h"
#include "ferry/core/thread.h"

namespace ferry::python {
namespace {

namespace nb = nanobind;

// As Config::Set() takes it: True is "on", and a number of a duration seconds.
std::string SettingText(nb::handle value, const ConfigEntry* entry) {
  if (nb::isinstance<nb::bytes>(value)) {
    throw Raised(Error(Code::kInvalidArgument,
                       fmt::format("{} is bytes; give text", entry == nullptr ? "" : entry->name)));
  }
  if (nb::isinstance<nb::bool_>(value)) return nb::cast<bool>(value) ? "on" : "off";
  const bool number = nb::isinstance<nb::int_>(value) || nb::isinstance<nb::float_>(value);
  if (number && entry != nullptr && entry->unit == "duration") {
    return fmt::format("{:.0f}us", nb::cast<double>(value) * 1e6);
  }
  return nb::cast<std::string>(nb::str(value));
}

Config ConfigOf(const nb::kwargs& settings) {
  Config config = Take(Config::FromEnvironment());
  const auto entries = config.Describe();
  for (const auto& [key, value] : settings) {
    const auto name = nb::cast<std::string>(key);
    const auto entry = std::find_if(entries.begin(), entries.end(),
                                    [&](const ConfigEntry& each) { return each.name == name; });
    Check(config.Set(name, SettingText(value, entry == entries.end() ? nullptr : &*entry)));
  }
  return config;
}

// All that were made, for the interpreter's end; under its lock.
std::vector<std::weak_ptr<EndpointHolder>>& Holders() {
  static std::vector<std::weak_ptr<EndpointHolder>> holders;
  return holders;
}

std::shared_ptr<EndpointHolder> Make(const nb::kwargs& settings) {
  Config config = ConfigOf(settings);
  Result<transfer::Endpoint> made = [&] {
    const OthersGoOn others_go_on;
    return transfer::Endpoint::Create(config);
  }();
  auto holder = std::make_shared<EndpointHolder>(Take(std::move(made)), std::move(config));
  auto& holders = Holders();
  holders.erase(std::remove_if(holders.begin(), holders.end(),
                               [](const auto& each) { return each.expired(); }),
                holders.end());
  holders.push_back(holder);
  return holder;
}

constexpr std::chrono::seconds kReturnPatience{10};

// Threads that wait would otherwise be ended by the interpreter in the middle of it, and the
// process with them.
void CloseAll() {
  const auto close = [] {
    const auto holders = Holders();
    for (const auto& each : holders) {
      if (const auto holder = each.lock()) holder->Close();
    }
  };
  close();
  OthersGoOn::AwaitReturns(Deadline::After(kReturnPatience));
  close();  // those that were being made
  LetGo(~std::size_t{0});
}

using Connected = Result<transfer::Connection>;

// A connect() on a thread of its own, so that the one that waits for it can be interrupted.
// Shared by the two.
struct Attempt {
  std::mutex mutex;
  std::condition_variable ended;
  std::optional<Connected> result;  // under mutex
};

template <class Connect>
Connected ConnectBeside(Connect connect) {
  auto attempt = std::make_shared<Attempt>();
  auto thread = StartThread("connect()", [attempt, connect = std::move(connect)]() mutable {
    Connected result = connect();
    const std::lock_guard lock(attempt->mutex);
    attempt->result.emplace(std::move(result));
    attempt->ended.notify_all();
  });
  if (!thread) return thread.error();
  thread->detach();
  Check(WaitInParts(Deadline::Never(), [&](Deadline part) -> Status {
    std::unique_lock lock(attempt->mutex);
    attempt->ended.wait_until(lock, part.when(), [&] { return attempt->result.has_value(); });
    if (attempt->result) return Ok();
    return Error(Code::kTimedOut, "connecting goes on");
  }));
  return std::move(*attempt->result);
}

using AnyAddress = std::variant<std::string, nb::bytes>;

Connection Connect(const SharedEndpoint& holder, const AnyAddress& address,
                   std::optional<double> timeout) {
  const auto endpoint = holder->Get();
  const Deadline deadline = DeadlineOf(timeout, Deadline::After(holder->config().connect_timeout));
  if (const auto* text = std::get_if<std::string>(&address)) {
    return Connection(holder, Take(ConnectBeside([endpoint, deadline, text = *text] {
                        return endpoint->Connect(text, deadline);
                      })));
  }
  auto parsed = Take(transfer::EndpointAddress::Parse(BytesOf(std::get<nb::bytes>(address))));
  return Connection(holder, Take(ConnectBeside([endpoint, deadline, parsed = std::move(parsed)] {
                      return endpoint->Connect(parsed, deadline);
                    })));
}

Connection Accept(const SharedEndpoint& holder, std::optional<double> timeout) {
  const auto endpoint = holder->Get();
  return Connection(holder, Take(WaitInParts(DeadlineOf(timeout), [&](Deadline part) {
                      return endpoint->Accept(part);
                    })));
}

std::unique_ptr<Region> Register(const SharedEndpoint& holder, nb::handle memory,
                                 const std::string& rights_text) {
  const transfer::Rights rights = RightsOf(rights_text);
  const bool written = transfer::Includes(rights, transfer::Rights::kWrite);
  auto held = std::make_unique<Memory>(
      memory, written ? Memory::Access::kWrite : Memory::Access::kRead, "memory");
  return std::make_unique<Region>(holder, std::move(held), rights);
}

}  // namespace

// ---- the holder ---------------------------------------------------------------------------------

EndpointHolder::EndpointHolder(transfer::Endpoint endpoint, Config config)
    : endpoint_(std::make_shared<transfer::Endpoint>(std::move(endpoint))),
      config_(std::move(config)) {}

EndpointHolder::~EndpointHolder() { Close(); }

std::shared_ptr<transfer::Endpoint> EndpointHolder::Get() const {
  RefuseAfterFork(made_, "endpoint");
  if (endpoint_ != nullptr) return endpoint_;
  throw Raised(Error(Code::kCancelled, "the endpoint is closed; make another"));
}

// In a forked child this only forgets the endpoint, which is its parent's.
void EndpointHolder::Close() {
  auto endpoint = std::exchange(endpoint_, nullptr);
  if (endpoint == nullptr) return;
  const OthersGoOn others_go_on(std::nothrow);
  endpoint->Close();
  endpoint.reset();
}

// ---- to Python ----------------------------------------------------------------------------------

void BindEndpoint(nb::module_& module) {
  module.def("_close_all", &CloseAll);
  nb::class_<EndpointHolder>(module, "Endpoint",
                             "A process's place on the network. Settings are those of the library "
                             "(`ferry info` lists them) by name: Endpoint(lanes=4, secret=...); "
                             "those not given come from FERRY_* variables.")
      .def(nb::new_(&Make))
      .def_prop_ro("id", [](const EndpointHolder& self) { return self.Get()->id().ToString(); })
      .def_prop_ro("port", [](const EndpointHolder& self) { return self.Get()->port(); })
      .def_prop_ro("metrics_port",
                   [](const EndpointHolder& self) { return self.Get()->metrics_port(); })
      .def_prop_ro(
          "address",
          [](const EndpointHolder& self) { return ToPython(self.Get()->address().Serialize()); },
          "What connect() of another endpoint takes; bytes to be passed on by any way.")
      .def("register", &Register, nb::arg("memory"), nb::arg("rights") = "rw",
           "Lets transfers use the bytes of an array or tensor; `rights` are what peers with the "
           "region's key may do: 'r', 'w', 'rw' or ''.")
      .def("connect", &Connect, nb::arg("address"), nb::arg("timeout") = nb::none(),
           "To 'host:port', or to an endpoint's address.")
      .def("accept", &Accept, nb::arg("timeout") = nb::none(), "The next peer that has connected.")
      .def("counters", [](const EndpointHolder& self) { return FactsOf(self.Get()->Counters()); })
      .def(
          "close",
          [](EndpointHolder& self) {
            self.Close();
            LetGo(~std::size_t{0});
          },
          "Ends every connection and operation; nothing touches any memory afterwards.");
}

}  // namespace ferry::python
