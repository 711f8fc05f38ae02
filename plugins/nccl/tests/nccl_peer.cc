// Implements the peer process that drives the NCCL plugin.

#include "plugins/nccl/tests/nccl_peer.h"

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <optional>
#include <sstream>

namespace ferry::nccl_net::testing {
namespace {

// As an answer has to be.
std::string InOneLine(std::string text) {
  std::replace(text.begin(), text.end(), '\n', '|');
  return text;
}

class PeerOfPlugin {
 public:
  explicit PeerOfPlugin(int version) : host_(FERRY_NCCL_PLUGIN, version) {}

  Result<std::string> CarryOut(const std::string& line) {
    std::istringstream words(line);
    std::string verb;
    words >> verb;
    if (verb == "listen") {
      listen_ = std::make_unique<NcclListen>(&host_);
      return tests::ToHex(listen_->handle());
    }
    if (verb == "connect") {
      std::string handle;
      words >> handle;
      send_ = NcclConnect(&host_, HandleOf(handle)).Connect(tests::TestDeadline());
      return std::string();
    }
    if (verb == "accept") {
      recv_ = listen_->Accept(tests::TestDeadline());
      return std::string();
    }
    if (verb == "variable") {
      std::string name;
      words >> name;
      const char* const value = std::getenv(name.c_str());
      return std::string(value == nullptr ? "" : value);
    }
    if (verb == "logged") {
      const std::string text = line.substr(verb.size() + 1);
      return Logged(text) ? text : InOneLine(LoggedText());
    }
    if (verb == "devices") {
      int count = 0;
      Require(host_->Devices(&count), "devices");
      return std::to_string(count);
    }
    std::size_t bytes = 0;
    std::size_t count = 1;
    words >> bytes >> count;
    if (verb == "echo" || verb == "sink") return Take(bytes, verb == "echo");
    if (verb == "stream") return Stream(bytes, count);
    if (verb == "last") return TakeAndClose(bytes);
    if (verb == "compare") return Compare(bytes, count);
    return Error(Code::kInvalidArgument, "no such verb: " + verb);
  }

 private:
  void* Post(bool send, std::vector<std::byte>* memory) {
    void* request = nullptr;
    const Message message{memory->data(), memory->size(), 1, nullptr};
    Require(send ? host_->Send(send_, message, &request) : host_->Receive(recv_, message, &request),
            send ? "isend" : "irecv");
    return request;
  }

  Result<std::string> Take(std::size_t bytes, bool give_back) {
    std::vector<std::byte> memory(bytes);
    Require(WaitFor(host_, Post(false, &memory), nullptr, tests::TestDeadline()), "irecv");
    if (give_back) {
      Require(WaitFor(host_, Post(true, &memory), nullptr, tests::TestDeadline()), "isend");
    }
    return std::string();
  }

  Result<std::string> TakeAndClose(std::size_t bytes) {
    std::vector<std::byte> memory(bytes);
    const int outcome = WaitFor(host_, Post(false, &memory), nullptr, tests::TestDeadline());
    Require(host_->CloseReceive(recv_), "closeRecv");
    Require(outcome, "irecv");
    return std::string();
  }

  Result<std::string> Compare(std::size_t bytes, std::size_t count) {
    std::vector<std::byte> memory(bytes);
    for (std::size_t i = 0; i < count; ++i) {
      Require(WaitFor(host_, Post(false, &memory), nullptr, tests::TestDeadline()), "irecv");
      if (memory != PatternOf(bytes, i)) return Error(Code::kInternal, "other bytes came");
    }
    Require(host_->CloseReceive(recv_), "closeRecv");
    return std::string();
  }

  Result<std::string> Stream(std::size_t bytes, std::size_t count) {
    std::vector<std::byte> memory(bytes);
    std::vector<void*> requests;
    for (std::size_t i = 0; i < count; ++i) {
      requests.push_back(Post(true, &memory));
      requests.push_back(Post(false, &memory));
    }
    for (void* const request : requests) {
      Require(WaitFor(host_, request, nullptr, tests::TestDeadline()), "test");
    }
    return std::string();
  }

  NcclHost host_;
  std::unique_ptr<NcclListen> listen_;
  void* send_ = nullptr;
  void* recv_ = nullptr;
};

}  // namespace

Handle HandleOf(const std::string& hex) {
  Handle handle{};
  const auto bytes = tests::FromHex(hex);
  std::copy_n(bytes.begin(), std::min(bytes.size(), handle.size()), handle.begin());
  return handle;
}

int RunNcclPeer(tests::LinePipe& parent, int version) {
  std::optional<PeerOfPlugin> peer;
  std::string failure;
  try {
    peer.emplace(version);
  } catch (const std::exception& error) {
    failure = InOneLine(error.what());
  }
  return tests::Obey(parent, [&](const std::string& line) -> Result<std::string> {
    if (!peer) return Error(Code::kUnavailable, failure);
    try {
      return peer->CarryOut(line);
    } catch (const std::exception& error) {
      return Error(Code::kInternal, InOneLine(error.what()));
    }
  });
}

}  // namespace ferry::nccl_net::testing
