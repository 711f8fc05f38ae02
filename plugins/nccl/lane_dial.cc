// Implements LaneDial.
#include "plugins/nccl/lane_dial.h"

#include <string>
#include <utility>

#include "plugins/nccl/engine.h"
#include "plugins/nccl/rank.h"
#include "plugins/nccl/wire.h"

namespace ferry::nccl_net {

LaneDial::LaneDial(Request request, Found found, Failed failed)
    : request_(std::move(request)),
      found_(std::move(found)),
      failed_(std::move(failed)),
      handshakes_(request_.addresses.size()) {}

LaneDial::~LaneDial() = default;

void LaneDial::Start() {
  dial_ = std::make_shared<net::Dial>(
      &request_.engine->provider(), &request_.engine->settings().config, request_.loop,
      net::Candidates(request_.addresses, request_.deadline, Clock::now(), milliseconds(0)),
      [weak = weak_from_this()](std::size_t index, auto lane, Deadline deadline) {
        if (const auto self = weak.lock()) self->OnUp(index, std::move(lane), deadline);
      },
      [weak = weak_from_this()](const Error& error) {
        if (const auto self = weak.lock()) self->failed_(error);
      });
  dial_->Start();
}

// The handshakes end with this object, so they do not own it.
void LaneDial::OnUp(std::size_t index, std::unique_ptr<net::Lane> lane, Deadline deadline) {
  handshakes_[index] = std::make_unique<session::Handshake>(
      std::move(lane),
      session::Handshake::Terms{.side = session::Handshake::Side::kDials,
                                .role = session::wire::Role::kNccl,
                                .loop = request_.loop,
                                .deadline = deadline,
                                .peer_name = request_.addresses[index].ToString(),
                                .secret = SecretOf(request_.key),
                                .number = index},
      std::shared_ptr<HandshakeUser>(std::shared_ptr<void>(), this));
  handshakes_[index]->StartOnLoop();
  handshakes_[index]->OpenOnLoop(session::wire::Type::kHello,
                                 session::wire::BytesOf(request_.hello));
}

// Destroyed later: this may be a callback of its lane.
void LaneDial::OnGone(session::Handshake* handshake, const Error& error) {
  const std::size_t index = handshake->number();
  const std::string peer = request_.addresses[index].ToString();
  const bool is_closed =
      handshake->was_refused() && error.message().find(kUnknownListen) != std::string::npos;
  const bool may_pass = request_.may_retry && error.code() == Code::kPeerLost;
  request_.loop->Post([gone = std::move(handshakes_[index])] {});
  dial_->Fail(index, is_closed ? ListenCommClosed(peer) : error,
              may_pass ? net::Candidates::Retry::kLater : net::Candidates::Retry::kNever);
}

void LaneDial::OnComplete(session::Handshake* handshake) {
  request_.loop->Post([weak = weak_from_this(), index = handshake->number()] {
    if (const auto self = weak.lock()) self->Take(index);
  });
}

void LaneDial::Take(std::size_t index) {
  // The lane has ended meanwhile, or another one was taken.
  if (handshakes_.empty() || handshakes_[index] == nullptr || !handshakes_[index]->complete()) {
    return;
  }
  const auto handshakes = std::exchange(handshakes_, {});  // until the lane has another handler
  dial_.reset();
  found_(handshakes[index]->ReleaseLane(), request_.addresses[index]);
}

}  // namespace ferry::nccl_net
