// Ends connections of a plugin whose set-up was given up in the middle.
#pragma once
#include <chrono>
#include <cstddef>
#include <memory>

#include "ferry/core/result.h"
#include "ferry/tcpx/host/comm.h"
#include "ferry/tcpx/lane/lane_gpu.h"

namespace ferry::tcpx {

// How long the plugin is still asked for a connection that nobody wants. The peer's connect fails
// when this side stops to accept, so this side must wait longer for its own connects.
inline constexpr std::chrono::seconds kAbandonedAcceptTimeout{5};
inline constexpr std::chrono::seconds kAbandonedConnectTimeout{60};

// With so many halves of connections to close, a set-up is refused: peers that answer no connect
// would otherwise make this process hold any number of sockets. Those that peers begin are refused
// earlier, so that they cannot keep this side from connecting.
inline constexpr std::size_t kMaxAbandonedWhenAccepting = 128;
inline constexpr std::size_t kMaxAbandonedWhenConnecting = 256;

// NCCL's interface cannot cancel connect and accept: sockets and threads that a plugin has made for
// a connection stay for the life of the process, unless the connection is completed and its comm is
// closed. This takes both halves of a set-up that was given up, either of which may be null, and
// does so on a thread of its own, which ends when nothing is left to do. An accept or a connect
// that has not ended at its deadline is logged, and what the plugin has opened for it stays open.
// At exit() the rest is left as it is: plugins are not called from then on, except that a call that
// takes more than 2 s is not awaited.
//
// What the plugin has not begun, or has ended, is only destroyed, before this returns. Any thread;
// does not block. The plugin and the devices of `gpu` must live as long as the process.
void CloseInBackground(const LaneGpu& gpu, std::unique_ptr<Listening> listening,
                       std::unique_ptr<Connecting> connecting);

// Whether another set-up may begin: kUnavailable where `most` halves or more are left. Any thread.
Status CheckAbandoned(const Plugin& plugin, std::size_t most);

// Halves of connections that CloseInBackground() has not ended yet, in the process. For tests.
std::size_t AbandonedConnections();

}  // namespace ferry::tcpx
