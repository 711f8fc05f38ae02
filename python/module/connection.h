// Python's view of a connection and the options that every posting method accepts.
#pragma once
#include <nanobind/nanobind.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "python/module/transfer.h"

namespace ferry::python {

// A checked transfer with the regions that it uses.
struct Prepared {
  transfer::PreparedTransfer transfer;
  transfer::Direction direction;
  nanobind::object regions;  // a tuple
  nanobind::list on_gpus;    // of each GPU whose memory it is one of them
};

// The keyword options of every method that begins an operation.
struct Options {
  std::optional<double> timeout;
  // The stream that it comes after: "auto" for the one that the memory's library now queues work
  // on; None; a cudaStream_t as a number; or an object with cuda_stream (torch) or ptr (CuPy).
  nanobind::object stream;
};

class Connection {
 public:
  Connection(SharedEndpoint endpoint, transfer::Connection connection)
      : endpoint_(std::move(endpoint)), connection_(std::move(connection)) {}

  const SharedEndpoint& endpoint() const noexcept { return endpoint_; }
  const transfer::Connection& Get() const {
    RefuseAfterFork(made_, "connection");
    return connection_;
  }

  Prepared Prepare(transfer::Direction direction, const nanobind::list& parts);
  std::unique_ptr<Operation> Post(const Prepared& prepared, const nanobind::bytes& notification,
                                  bool checksum, const Options& options);
  std::unique_ptr<Operation> Send(nanobind::handle data, std::uint64_t tag, const Options& options);
  std::unique_ptr<Operation> Recv(nanobind::handle buffer, std::uint64_t tag, std::uint64_t mask,
                                  const Options& options);
  std::unique_ptr<Operation> Notify(const nanobind::bytes& bytes, const Options& options);
  nanobind::bytes TakeNotification(std::optional<double> timeout);
  void Close();

 private:
  std::unique_ptr<Operation> Begun(Result<transfer::Operation> operation, nanobind::object memory);

  SharedEndpoint endpoint_;
  transfer::Connection connection_;
  ProcessMark made_;
};

// Converts a value of `Options::stream`; None means no stream. Uses GPU `ordinal` if neither stream
// nor memory determines one.
std::optional<cuda::StreamRef> StreamOf(nanobind::handle stream, const Memory* memory, int ordinal);

}  // namespace ferry::python
