// Binds connections to Python: posting operations, messages, notifications and closing.

#include "python/module/connection.h"

#include <fmt/core.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <utility>

#include "ferry/cuda/address.h"
#include "python/module/facts.h"
#include "python/module/waiting.h"

namespace ferry::python {
namespace {

namespace nb = nanobind;

[[noreturn]] void RefuseCall(std::string why) {
  throw Raised(Error(Code::kInvalidArgument, std::move(why)));
}

// Offset in the local region, offset in the remote one, bytes.
using Row = std::array<std::uint64_t, 3>;

void AddRow(const Row& row, transfer::Direction direction, BlockList* blocks) {
  const bool write = direction == transfer::Direction::kWrite;
  blocks->Add({.dst = write ? row[1] : row[0], .src = write ? row[0] : row[1], .len = row[2]});
}

template <class Number>
bool AddArray(nb::handle rows, transfer::Direction direction, BlockList* blocks) {
  nb::ndarray<const Number, nb::shape<-1, 3>, nb::device::cpu> array;
  // A conversion would copy the array, and change floating-point offsets into integers silently.
  if (!nb::try_cast(rows, array, /*convert=*/false)) return false;
  blocks->Reserve(array.shape(0));
  for (std::size_t i = 0; i < array.shape(0); ++i) {
    AddRow({static_cast<std::uint64_t>(array(i, 0)), static_cast<std::uint64_t>(array(i, 1)),
            static_cast<std::uint64_t>(array(i, 2))},
           direction, blocks);
  }
  return true;
}

BlockList BlocksOf(nb::handle rows, transfer::Direction direction) {
  BlockList blocks;
  if (AddArray<std::uint64_t>(rows, direction, &blocks)) return blocks;
  if (AddArray<std::int64_t>(rows, direction, &blocks)) return blocks;
  std::vector<Row> list;
  if (!nb::isinstance<nb::sequence>(rows) || !nb::try_cast(rows, list)) {
    RefuseCall(
        "blocks: give rows of (offset in the local region, offset in the remote one, bytes),"
        " as a list or as an array of int64 or uint64 of shape [n, 3]");
  }
  for (const Row& row : list) AddRow(row, direction, &blocks);
  return blocks;
}

// The first device of each GPU.
void NoteGpu(nb::handle region, nb::list* on_gpus) {
  const int ordinal = nb::cast<const Region&>(region).memory().ordinal();
  if (ordinal == Memory::kHost) return;
  for (const nb::handle other : *on_gpus) {
    if (nb::cast<const Region&>(other).memory().ordinal() == ordinal) return;
  }
  on_gpus->append(region);
}

// (Region, RemoteRegion, blocks or None for all of both).
transfer::TransferPart PartOf(const nb::tuple& part, transfer::Direction direction) {
  const Region* local = nullptr;
  const transfer::RemoteRegion* remote = nullptr;
  if (part.size() != 3 || !nb::try_cast(part[0], local) || !nb::try_cast(part[1], remote) ||
      local == nullptr || remote == nullptr) {
    RefuseCall("parts: each is (region, remote region, blocks or None)");
  }
  if (direction == transfer::Direction::kRead && !local->memory().writable()) {
    RefuseCall("a read would write the local region, whose memory is read-only");
  }
  transfer::TransferPart made{.local = &local->Get(), .remote = remote, .blocks = {}};
  if (!part[2].is_none()) {
    made.blocks = BlocksOf(part[2], direction);
    return made;
  }
  const std::uint64_t here = local->memory().bytes().size();
  if (here != remote->length) {
    RefuseCall(
        fmt::format("without blocks both regions must be of one size, and the local one has "
                    "{} bytes, the remote one {}; give blocks",
                    here, remote->length));
  }
  made.blocks.Add({.dst = 0, .src = 0, .len = here});
  return made;
}

constexpr const char* kStreamForms =
    "stream: give 'auto', None, a cudaStream_t as a number, or a stream of torch's or CuPy's";

std::optional<cuda::StreamRef> CurrentStreamOf(const Memory* memory) {
  if (memory == nullptr || memory->ordinal() == Memory::kHost) return std::nullopt;
  if (memory->ordinal() == Memory::kUnknownGpu) {
    RefuseCall(
        "stream: the array does not say which GPU it is on; give the stream that it comes "
        "after, or None");
  }
  return cuda::StreamRef::Foreign(memory->ordinal(), memory->CurrentStream());
}

}  // namespace

std::optional<cuda::StreamRef> StreamOf(nb::handle stream, const Memory* memory, int ordinal) {
  // No stream: the caller answers for the order of its GPU work.
  if (stream.is_none()) return std::nullopt;
  if (memory != nullptr && memory->ordinal() >= 0) ordinal = memory->ordinal();
  if (nb::isinstance<nb::str>(stream)) {
    if (nb::cast<std::string>(stream) != "auto") RefuseCall(kStreamForms);
    return CurrentStreamOf(memory);
  }
  nb::object number = nb::borrow(stream);
  // Streams of torch have `cuda_stream`, those of CuPy `ptr`; either is the handle of CUDA as a
  // number.
  if (nb::hasattr(stream, "cuda_stream")) {
    number = stream.attr("cuda_stream");
    if (nb::hasattr(stream, "device_index")) {
      ordinal = nb::cast<int>(stream.attr("device_index"));
    }
  } else if (nb::hasattr(stream, "ptr")) {
    number = stream.attr("ptr");
  }
  std::uint64_t native = 0;
  if (!nb::try_cast(number, native)) RefuseCall(kStreamForms);
  return cuda::StreamRef::Foreign(ordinal, cuda::PointerTo(native));
}

namespace {

template <typename VerbOptions>
VerbOptions OptionsOf(const Options& options, const Memory* memory) {
  VerbOptions made;
  if (options.timeout) made.deadline = DeadlineOf(options.timeout);
  made.after = StreamOf(options.stream, memory, 0);
  return made;
}

// An operation comes after one stream. Those of further GPUs are waited for here.
std::shared_ptr<const Memory> FirstOf(const nb::list& on_gpus, nb::handle stream) {
  const std::size_t count = on_gpus.size();
  if (count == 0) return nullptr;
  const bool by_itself = nb::isinstance<nb::str>(stream);
  for (std::size_t i = 1; by_itself && i < count; ++i) {
    nb::cast<const Region&>(on_gpus[i]).Share()->AwaitCurrentStream();
  }
  return nb::cast<const Region&>(on_gpus[0]).Share();
}

}  // namespace

std::unique_ptr<Operation> Connection::Begun(Result<transfer::Operation> operation,
                                             nb::object memory) {
  LetGo();
  // The operation owns the memory from here on, and lets it go at its end.
  return std::make_unique<Operation>(endpoint_, Take(std::move(operation)), std::move(memory));
}

Prepared Connection::Prepare(transfer::Direction direction, const nb::list& parts) {
  // A private copy: other threads may change the caller's list.
  std::vector<nb::tuple> held;
  for (const nb::handle part : nb::tuple(parts)) {
    nb::tuple one;
    if (!nb::try_cast(part, one)) RefuseCall("parts: each is (region, remote region, blocks)");
    held.push_back(one);
  }
  std::vector<transfer::TransferPart> made;
  nb::list regions;
  nb::list on_gpus;
  for (const nb::tuple& part : held) {
    made.push_back(PartOf(part, direction));
    regions.append(part[0]);
    NoteGpu(part[0], &on_gpus);
  }
  auto prepared = [&] {
    const OthersGoOn others_go_on;  // GPUs may be asked
    return direction == transfer::Direction::kWrite ? connection_.PrepareWrite(std::move(made))
                                                    : connection_.PrepareRead(std::move(made));
  }();
  return {Take(std::move(prepared)), direction, nb::tuple(regions), std::move(on_gpus)};
}

std::unique_ptr<Operation> Connection::Post(const Prepared& prepared, const nb::bytes& notification,
                                            bool checksum, const Options& options) {
  const auto first = FirstOf(prepared.on_gpus, options.stream);
  auto begun = [&] {
    if (prepared.direction == transfer::Direction::kWrite) {
      auto post = OptionsOf<transfer::WriteOptions>(options, first.get());
      post.notification = BytesOf(notification);
      post.checksum = checksum;
      const OthersGoOn others_go_on;
      return connection_.Write(prepared.transfer, post);
    }
    if (notification.size() != 0) {
      RefuseCall("a read carries no notification; send one when the read has ended");
    }
    auto post = OptionsOf<transfer::ReadOptions>(options, first.get());
    post.checksum = checksum;
    const OthersGoOn others_go_on;
    return connection_.Read(prepared.transfer, post);
  }();
  return Begun(std::move(begun), prepared.regions);
}

std::unique_ptr<Operation> Connection::Send(nb::handle data, std::uint64_t tag,
                                            const Options& options) {
  auto memory = std::make_unique<Memory>(data, Memory::Access::kRead, "data");
  const auto post = OptionsOf<transfer::SendOptions>(options, memory.get());
  auto begun = [&] {
    const OthersGoOn others_go_on;
    return connection_.Send(tag, memory->bytes(), post);
  }();
  return Begun(std::move(begun), nb::cast(std::move(memory)));
}

std::unique_ptr<Operation> Connection::Recv(nb::handle buffer, std::uint64_t tag,
                                            std::uint64_t mask, const Options& options) {
  auto memory = std::make_unique<Memory>(buffer, Memory::Access::kWrite, "buffer");
  const auto post = OptionsOf<transfer::RecvOptions>(options, memory.get());
  auto begun = [&] {
    const OthersGoOn others_go_on;
    return connection_.Recv(tag, mask, memory->bytes(), post);
  }();
  return Begun(std::move(begun), nb::cast(std::move(memory)));
}

std::unique_ptr<Operation> Connection::Notify(const nb::bytes& bytes, const Options& options) {
  const auto post = OptionsOf<transfer::NotifyOptions>(options, nullptr);
  return Begun(connection_.Notify(BytesOf(bytes), post), nb::none());
}

nb::bytes Connection::TakeNotification(std::optional<double> timeout) {
  return ToPython(Take(WaitInParts(
      DeadlineOf(timeout), [this](Deadline part) { return connection_.TakeNotification(part); })));
}

void Connection::Close() {
  {
    const OthersGoOn others_go_on;
    connection_.Close();
  }
  LetGo();
}

// ---- to Python ----------------------------------------------------------------------------------

namespace {

// Those of one part and those of several.
template <transfer::Direction kDirection>
Prepared PrepareParts(Connection& self, const nb::list& parts) {
  return self.Prepare(kDirection, parts);
}

// NOLINTBEGIN(readability-function-size): the parameters that Python names
template <transfer::Direction kDirection>
std::unique_ptr<Operation> PostOne(Connection& self, nb::handle local, nb::handle remote,
                                   nb::handle blocks, const nb::bytes& notification, bool checksum,
                                   std::optional<double> timeout, nb::object stream) {
  nb::list parts;
  parts.append(nb::make_tuple(local, remote, blocks));
  return self.Post(self.Prepare(kDirection, parts), notification, checksum,
                   {timeout, std::move(stream)});
}
// NOLINTEND(readability-function-size)

constexpr auto kWrite = transfer::Direction::kWrite;
constexpr auto kRead = transfer::Direction::kRead;

void BindTransfers(nb::class_<Connection>& connection) {
  connection
      .def("prepare_write", &PrepareParts<kWrite>, nb::arg("parts"),
           "Checks a transfer for any number of posts; parts are (region, remote, blocks).")
      .def("prepare_read", &PrepareParts<kRead>, nb::arg("parts"))
      .def(
          "post",
          [](Connection& self, const Prepared& prepared, const nb::bytes& notification,
             bool checksum, std::optional<double> timeout, nb::object stream) {
            return self.Post(prepared, notification, checksum, {timeout, std::move(stream)});
          },
          nb::arg("prepared"), nb::arg("notification") = nb::bytes(""), nb::arg("checksum") = false,
          nb::arg("timeout") = nb::none(), nb::arg("stream") = "auto")
      .def("write", &PostOne<kWrite>, nb::arg("local"), nb::arg("remote"),
           nb::arg("blocks") = nb::none(), nb::kw_only(), nb::arg("notification") = nb::bytes(""),
           nb::arg("checksum") = false, nb::arg("timeout") = nb::none(), nb::arg("stream") = "auto",
           "Into the peer's region; blocks are rows of (local offset, remote offset, bytes).")
      .def("read", &PostOne<kRead>, nb::arg("local"), nb::arg("remote"),
           nb::arg("blocks") = nb::none(), nb::kw_only(), nb::arg("notification") = nb::bytes(""),
           nb::arg("checksum") = false, nb::arg("timeout") = nb::none(), nb::arg("stream") = "auto",
           "Out of the peer's region; blocks as for write().");
}

void BindMessages(nb::class_<Connection>& connection) {
  connection
      .def(
          "send",
          [](Connection& self, nb::handle data, std::uint64_t tag, std::optional<double> timeout,
             nb::object stream) {
            return self.Send(data, tag, {timeout, std::move(stream)});
          },
          nb::arg("data"), nb::arg("tag") = 0, nb::kw_only(), nb::arg("timeout") = nb::none(),
          nb::arg("stream") = "auto")
      .def(
          "recv",
          [](Connection& self, nb::handle buffer, std::uint64_t tag, std::uint64_t mask,
             std::optional<double> timeout, nb::object stream) {
            return self.Recv(buffer, tag, mask, {timeout, std::move(stream)});
          },
          nb::arg("buffer"), nb::arg("tag") = 0, nb::kw_only(), nb::arg("mask") = ~std::uint64_t{0},
          nb::arg("timeout") = nb::none(), nb::arg("stream") = "auto",
          "The oldest message whose tag agrees in the bits of `mask`; the operation has its size.")
      .def(
          "notify",
          [](Connection& self, const nb::bytes& data, std::optional<double> timeout) {
            return self.Notify(data, {timeout, nb::none()});
          },
          nb::arg("data"), nb::kw_only(), nb::arg("timeout") = nb::none())
      .def("take_notification", &Connection::TakeNotification, nb::arg("timeout") = nb::none())
      .def(
          "take_notification_async",
          [](nb::handle self, std::optional<double> timeout) {
            return nb::module_::import_("tensorferry._asyncio")
                .attr("take_notification")(self, timeout);
          },
          nb::arg("timeout") = nb::none(),
          "take_notification() to be awaited: the event loop goes on meanwhile, and a cancelled "
          "task takes none.")
      .def("_notification_readiness",
           [](const Connection& self) { return Take(self.Get().NotificationReadiness()); });
}

}  // namespace

void BindConnection(nb::module_& module) {
  const nb::class_<Memory> memory(module, "_Memory");  // held by operations
  nb::class_<Prepared>(module, "PreparedTransfer").def_prop_ro("nbytes", [](const Prepared& self) {
    return self.transfer.bytes();
  });
  nb::class_<Connection> connection(module, "Connection", "To one peer.");
  BindTransfers(connection);
  BindMessages(connection);
  connection
      .def(
          "import_region",
          [](const Connection& self, const nb::bytes& key) {
            return Take(self.Get().Import(BytesOf(key)));
          },
          nb::arg("key"))
      .def_prop_ro("endpoint", &Connection::endpoint, "Ours, that it was made from.")
      .def_prop_ro("peer", [](const Connection& self) { return self.Get().peer().ToString(); })
      .def_prop_ro("lost", [](const Connection& self) { return self.Get().lost(); })
      .def("info", [](const Connection& self) { return FactsOf(self.Get().Info()); })
      .def("counters", [](const Connection& self) { return FactsOf(self.Get().Counters()); })
      .def("events", [](const Connection& self) { return FactsOf(self.Get().Events()); })
      .def("close", &Connection::Close);
}

}  // namespace ferry::python
