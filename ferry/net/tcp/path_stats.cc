// TCP_INFO of a lane.
#include <linux/tcp.h>  // in place of netinet/tcp.h, whose tcp_info ends before tcpi_delivery_rate
#include <netinet/in.h>
#include <sys/socket.h>

#include "ferry/net/tcp/lane.h"

namespace ferry::net::tcp {

// One system call. An older kernel fills in fewer fields; the rest stays 0.
PathStats TcpLane::Path() const {
  PathStats path;
  tcp_info info{};
  socklen_t bytes = sizeof info;
  if (!fd_ || ::getsockopt(fd_.get(), IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0) return path;
  path.known = true;
  path.round_trip = microseconds(info.tcpi_rtt);
  path.round_trip_variation = microseconds(info.tcpi_rttvar);
  path.congestion_window_bytes = std::uint64_t{info.tcpi_snd_cwnd} * info.tcpi_snd_mss;
  path.delivery_rate = info.tcpi_delivery_rate;
  path.retransmitted_segments = info.tcpi_total_retrans;
  path.acknowledged_bytes = info.tcpi_bytes_acked;
  return path;
}

}  // namespace ferry::net::tcp
