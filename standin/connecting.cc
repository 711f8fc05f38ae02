// Implements listen comms and connection handles.

#include "standin/connecting.h"

#include <sys/socket.h>

#include <random>
#include <utility>

namespace ferry::standin {

Dial::Dial(const void* handle, std::uint64_t id, int device)
    : handle_(handle), id_(id), device_(device) {}

void Dial::Start(Engine& engine, const Rendezvous& rendezvous) {
  const bool never = engine.settings().fault == Fault::kConnectNever;
  attempt_ =
      never ? Attempt::Never() : Attempt::Start([rendezvous] { return ConnectLink(rendezvous); });
}

int Dial::Poll(Engine& engine, std::unique_ptr<Comm>* comm) {
  if (attempt_ == nullptr) return Misuse("connect with a handle after its end");
  if (engine.Hit(Fault::kConnectFail)) {
    attempt_.reset();
    return abi::kSystemError;
  }
  const Settings& settings = engine.settings();
  // With `immediate` the comm gets an attempt that may still run, or may have failed; its isend()
  // then returns null, or the error.
  if (!settings.immediate) {
    if (polls_++ < settings.polls) return abi::kSuccess;
    const Attempt::State state = attempt_->state();
    if (state == Attempt::State::kRunning) return abi::kSuccess;
    if (state == Attempt::State::kFailed) {
      attempt_.reset();
      return abi::kSystemError;
    }
  }
  *comm = std::make_unique<SendComm>(engine, device_, std::exchange(attempt_, nullptr));
  return abi::kSuccess;
}

// ---- ListenComm ---------------------------------------------------------------------------------

std::unique_ptr<ListenComm> ListenComm::Make(Engine& engine, int device, Handle* handle) {
  std::random_device entropy;
  Rendezvous rendezvous;
  // Proves to the listener that a socket comes from somebody who has the handle; any process of the
  // machine can reach the port.
  rendezvous.id = (std::uint64_t{entropy()} << 32) | entropy();
  rendezvous.sockets = static_cast<std::uint32_t>(engine.settings().sockets);
  Socket socket = ListenOnLoopback(&rendezvous.port);
  if (!socket) return nullptr;
  *handle = {.rendezvous = rendezvous};
  return std::unique_ptr<ListenComm>(new ListenComm(device, std::move(socket), rendezvous));
}

ListenComm::ListenComm(int device, Socket socket, const Rendezvous& rendezvous)
    : device_(device),
      rendezvous_(rendezvous),
      socket_(std::make_shared<Socket>(std::move(socket))) {}

int ListenComm::Poll(Engine& engine, std::unique_ptr<RecvComm>* comm) {
  if (socket_ == nullptr) return Misuse("accept with a listen comm that was closed");
  if (used_) return Misuse("accept with a listen comm after its end");
  if (attempt_ == nullptr) {
    attempt_ = Attempt::Start([socket = socket_, rendezvous = rendezvous_] {
      return AcceptLink(socket->get(), rendezvous);
    });
  }
  // The attempt's thread goes on until closeListen() shuts its socket down.
  if (engine.Hit(Fault::kAcceptFail)) {
    used_ = true;
    return abi::kSystemError;
  }
  if (polls_++ < engine.settings().polls) return abi::kSuccess;
  const Attempt::State state = attempt_->state();
  if (state == Attempt::State::kRunning) return abi::kSuccess;
  used_ = true;
  if (state == Attempt::State::kFailed) return abi::kSystemError;
  *comm = RecvComm::Make(engine, device_, attempt_->TakeLink());
  return *comm == nullptr ? abi::kSystemError : abi::kSuccess;
}

int ListenComm::Close() {
  if (socket_ == nullptr) return Misuse("closeListen of a listen comm that was closed");
  // Wakes the thread in accept(); the descriptor is closed by the last of the two.
  (void)::shutdown(socket_->get(), SHUT_RDWR);
  socket_.reset();
  return abi::kSuccess;
}

}  // namespace ferry::standin
