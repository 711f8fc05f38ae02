// Binds registered memory, remote regions and prepared transfers to Python.

#include <fmt/core.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <charconv>
#include <string_view>
#include <utility>

#include "ferry/cuda/address.h"
#include "python/module/connection.h"
#include "python/module/facts.h"
#include "python/module/transfer.h"
#include "python/module/waiting.h"

namespace ferry::python {
namespace {

namespace nb = nanobind;

[[noreturn]] void RefuseArgument(std::string why) {
  throw Raised(Error(Code::kInvalidArgument, std::move(why)));
}

const char* RightsText(transfer::Rights rights) {
  switch (rights) {
    case transfer::Rights::kNone: break;
    case transfer::Rights::kRead: return "r";
    case transfer::Rights::kWrite: return "w";
    case transfer::Rights::kReadWrite: return "rw";
  }
  return "";
}

}  // namespace

transfer::Rights RightsOf(const std::string& text) {
  for (const auto rights : {transfer::Rights::kNone, transfer::Rights::kRead,
                            transfer::Rights::kWrite, transfer::Rights::kReadWrite}) {
    if (text == RightsText(rights)) return rights;
  }
  RefuseArgument(fmt::format("rights are '{}'; give 'r', 'w', 'rw' or ''", text));
}

Uuid EndpointIdOf(const std::string& text) {
  Uuid id;
  bool good = text.size() == 2 * id.bytes.size();
  for (std::size_t i = 0; good && i < id.bytes.size(); ++i) {
    const std::string_view digits = std::string_view(text).substr(2 * i, 2);
    unsigned value = 0;
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
    good = error == std::errc() && end == digits.data() + digits.size();
    id.bytes.at(i) = static_cast<std::byte>(value);
  }
  if (good) return id;
  RefuseArgument(
      fmt::format("'{}' is no endpoint's id; give Endpoint.id or Connection.peer, 32 "
                  "hexadecimal digits",
                  text));
}

Region::Region(SharedEndpoint endpoint, std::unique_ptr<Memory> memory, transfer::Rights rights)
    : endpoint_(std::move(endpoint)), memory_(std::move(memory)) {
  const auto alive = endpoint_->Get();
  Result<transfer::Region> registered = [&] {
    const OthersGoOn others_go_on;  // a GPU's staging may be set up
    return alive->Register(memory_->bytes(), rights);
  }();
  region_.emplace(Take(std::move(registered)));
}

Region::~Region() {
  const OthersGoOn others_go_on(std::nothrow);
  // May wait for transfers in the memory, which other threads of Python may have to end. The
  // memory's object goes afterwards.
  region_.reset();
}

const transfer::Region& Region::Get() const {
  RefuseAfterFork(made_, "region");
  if (memory_ == nullptr) RefuseArgument("the region was deregistered; register its memory again");
  return *region_;
}

const Memory& Region::memory() const {
  (void)Get();
  return *memory_;
}

std::shared_ptr<const Memory> Region::Share() const {
  (void)Get();
  return memory_;
}

void Region::Deregister(std::optional<double> timeout) {
  if (memory_ == nullptr) return;
  Check(WaitInParts(DeadlineOf(timeout),
                    [this](Deadline part) { return region_->Deregister(part); }));
  // Only now: after a timeout, transfers may still be in the memory.
  memory_.reset();
}

nb::bytes Region::Key() const { return ToPython(Get().key()); }

nb::bytes Region::KeyFor(const std::string& peer, const std::string& rights) {
  (void)Get();
  return ToPython(Take(region_->KeyFor(EndpointIdOf(peer), RightsOf(rights))));
}

void Region::Withdraw(const std::string& peer) {
  (void)Get();
  region_->Withdraw(EndpointIdOf(peer));
}

void BindRegion(nb::module_& module) {
  nb::class_<Region>(module, "Region",
                     "Memory that transfers may use; keeps the array or tensor alive. Deregisters "
                     "when it goes, which waits for those who are in the memory.")
      .def_prop_ro("memory", [](const Region& self) { return self.memory().object(); })
      .def_prop_ro("nbytes", [](const Region& self) { return self.memory().bytes().size(); })
      .def_prop_ro("key", &Region::Key,
                   "What a peer's import_region() takes. Whoever has it may use the region.")
      .def("key_for", &Region::KeyFor, nb::arg("peer"), nb::arg("rights"),
           "A key that only the endpoint with this id may use.")
      .def("withdraw", &Region::Withdraw, nb::arg("peer"))
      .def("deregister", &Region::Deregister, nb::arg("timeout") = nb::none(),
           "Nobody may begin to use it; returns when nobody does.");

  module.def(
      "_place_of",
      [](nb::handle object, bool written, const std::string& name) {
        const Memory memory(object, written ? Memory::Access::kWrite : Memory::Access::kRead,
                            name.c_str());
        return std::pair(cuda::AddressOf(memory.bytes().data()), memory.bytes().size());
      },
      nb::arg("object"), nb::arg("written"), nb::arg("name"),
      "(address, bytes) of what register() takes; its errors, with this name.");

  module.def(
      "_is_writable",
      [](std::uint64_t address, std::size_t nbytes) {
        return IsWritable({cuda::PointerTo<std::byte>(address), nbytes});
      },
      nb::arg("address"), nb::arg("nbytes"));

  nb::class_<transfer::RemoteRegion>(module, "RemoteRegion", "A peer's region, by its key.")
      .def_prop_ro("nbytes", [](const transfer::RemoteRegion& self) { return self.length; })
      .def_prop_ro("rights",
                   [](const transfer::RemoteRegion& self) { return RightsText(self.rights); })
      .def_prop_ro("endpoint",
                   [](const transfer::RemoteRegion& self) { return self.endpoint.ToString(); });
}

}  // namespace ferry::python
