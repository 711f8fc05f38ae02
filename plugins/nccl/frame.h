// A frame that a comm sends.
#pragma once
#include <atomic>
#include <cstdint>

#include "ferry/net/provider.h"

namespace ferry::nccl_net {

// A frame to send, and what to update when it was sent.
struct Frame : net::OutFrame {
  std::atomic<std::uint32_t>* left = nullptr;  // decremented when the frame was sent
  std::atomic<bool>* sent = nullptr;           // set when the frame was sent
};

}  // namespace ferry::nccl_net
