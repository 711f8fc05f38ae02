// Binds endpoints to Python: creation, listening, accepting, connecting and counters.

#include <fmt/core.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/variant.h>

#include <algorithm>
#include <functional>
#include <utility>
#include <variant>

#include "python/module/connect_attempt.h"
#include "python/module/connection.h"
#include "python/module/facts.h"
#include "python/module/transfer.h"
#include "python/module/waiting.h"

namespace ferry::python {
namespace {

namespace nb = nanobind;

// As Config::Set() takes it: True is "on", and a number of a duration seconds.
std::string SettingText(nb::handle value, const ConfigEntry* entry) {
  if (nb::isinstance<nb::bytes>(value)) {
    throw Raised(Error(Code::kInvalidArgument,
                       fmt::format("{} is bytes; give text", entry == nullptr ? "" : entry->name)));
  }
  // Before numbers: Python's bool is a kind of int.
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

constexpr std::chrono::seconds kReturnTimeout{10};

// Threads that wait would otherwise be ended by the interpreter in the middle of it, and the
// process with them.
void CloseAll() {
  const auto close = [] {
    // A copy: Close() releases the interpreter's lock, and other threads may add holders.
    const auto holders = Holders();
    for (const auto& each : holders) {
      if (const auto holder = each.lock()) holder->Close();
    }
  };
  close();
  OthersGoOn::AwaitReturns(Deadline::After(kReturnTimeout));
  close();  // those that were being made
  LetGo(~std::size_t{0});
}

using AnyAddress = std::variant<std::string, nb::bytes>;

std::function<ConnectAttempt::Connected()> Dial(const SharedEndpoint& holder,
                                                const AnyAddress& address,
                                                std::optional<double> timeout) {
  const auto endpoint = holder->Get();
  const Deadline deadline = DeadlineOf(timeout, Deadline::After(holder->config().connect_timeout));
  if (const auto* text = std::get_if<std::string>(&address)) {
    return [endpoint, deadline, text = *text] { return endpoint->Connect(text, deadline); };
  }
  auto parsed = Take(transfer::EndpointAddress::Parse(BytesOf(std::get<nb::bytes>(address))));
  return [endpoint, deadline, parsed = std::move(parsed)] {
    return endpoint->Connect(parsed, deadline);
  };
}

Connection Connect(const SharedEndpoint& holder, const AnyAddress& address,
                   std::optional<double> timeout) {
  // Dials on another thread, so that this one can serve signals. The wait has no limit of its own:
  // the dial has the deadline.
  ConnectAttempt attempt(Dial(holder, address, timeout));
  Check(WaitInParts(Deadline::Never(), [&](Deadline part) { return attempt.Wait(part); }));
  return Connection(holder, Take(attempt.Take()));
}

// The object that connect_async() awaits.
struct Connecting {
  SharedEndpoint holder;
  ConnectAttempt attempt;
};

std::unique_ptr<Connecting> BeginConnect(const SharedEndpoint& holder, const AnyAddress& address,
                                         std::optional<double> timeout) {
  return std::make_unique<Connecting>(
      Connecting{holder, ConnectAttempt(Dial(holder, address, timeout))});
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
  // Taken while Python's lock is held: a second close, on another thread, finds nothing to do.
  auto endpoint = std::exchange(endpoint_, nullptr);
  if (endpoint == nullptr) return;
  const OthersGoOn others_go_on(std::nothrow);
  endpoint->Close();
  endpoint.reset();
}

// ---- to Python ----------------------------------------------------------------------------------

void BindEndpoint(nb::module_& module) {
  module.def("_close_all", &CloseAll);
  nb::class_<transfer::Readiness>(module, "_Readiness")
      .def("fileno", [](const transfer::Readiness& self) { return Take(self.fd()); });
  nb::class_<Connecting>(module, "_Connecting")
      .def("fileno", [](const Connecting& self) { return Take(self.attempt.fd()); })
      .def("abandon", [](Connecting& self) { self.attempt.Abandon(); })
      .def("take",
           [](Connecting& self) { return Connection(self.holder, Take(self.attempt.Take())); });
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
      .def(
          "accept_async",
          [](nb::handle self, std::optional<double> timeout) {
            return nb::module_::import_("tensorferry._asyncio").attr("accept")(self, timeout);
          },
          nb::arg("timeout") = nb::none(),
          "accept() to be awaited: the event loop goes on meanwhile, and a cancelled task takes "
          "no peer.")
      .def(
          "connect_async",
          [](nb::handle self, const AnyAddress& address, std::optional<double> timeout) {
            return nb::module_::import_("tensorferry._asyncio")
                .attr("connect")(self, address, timeout);
          },
          nb::arg("address"), nb::arg("timeout") = nb::none(),
          "connect() to be awaited; of a cancelled task no connection is left.")
      .def("_accept_readiness",
           [](const EndpointHolder& self) { return Take(self.Get()->AcceptReadiness()); })
      .def("_begin_connect", &BeginConnect, nb::arg("address"), nb::arg("timeout").none())
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
