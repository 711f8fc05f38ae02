// Connects to an endpoint and reports its lanes for `ferry info --peer`.

#include <fmt/core.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "ferry/core/deadline.h"
#include "ferry/core/units.h"
#include "ferry/net/address.h"
#include "ferry/net/machine/interface_table.h"
#include "ferry/net/resolve.h"
#include "ferry/transfer/endpoint.h"
#include "tools/info/network.h"
#include "tools/support/command.h"
#include "tools/support/report.h"

namespace ferry::tools {
namespace {

// Lanes spread over interfaces after the first of them have connected.
constexpr auto kSettle = milliseconds(500);
constexpr auto kStill = milliseconds(150);
constexpr auto kLook = milliseconds(10);

Json RouteInfo(const Config& config, const net::Address& to) {
  Json info{{"address", to.ToString()}};
  const auto route = net::RouteTo(to);
  if (!route) {
    info["used"] = false;
    info["why"] = route.error().message();
    return info;
  }
  const net::Ways ways = net::InterfaceTable::OfThisNamespace()->WaysTo(to, config.interfaces);
  // The list of interfaces is for peers on other machines.
  const bool local = route->interface == "lo";
  const bool used = !ways.usable.empty();
  const bool bound = used && ways.usable.front() != route->interface;
  info["interface"] = bound ? ways.usable.front() : route->interface;
  info["source"] = route->source;
  info["used"] = used;
  info["why"] = local                       ? "on this machine"
                : config.interfaces.empty() ? "FERRY_INTERFACES is empty and allows all"
                : bound
                    ? fmt::format("FERRY_INTERFACES={} leaves out {}, by which the route leaves",
                                  config.interfaces, route->interface)
                    : fmt::format("FERRY_INTERFACES={} {} it", config.interfaces,
                                  used ? "allows" : "leaves out");
  if (bound) info["source"] = nullptr;  // the kernel chooses it for the interface
  return info;
}

Json LaneInfo(const transfer::LaneCounters& lane) {
  const auto us = [](microseconds duration) { return duration.count(); };
  return Json{{"local", lane.info.local},
              {"remote", lane.info.remote},
              {"interface", lane.info.interface},
              {"up", lane.up},
              {"congestion_control", lane.info.congestion_control},
              {"same_machine", lane.info.same_machine},
              {"bytes_sent", lane.traffic.bytes_sent},
              {"bytes_received", lane.traffic.bytes_received},
              {"frames_sent", lane.traffic.frames_sent},
              {"frames_received", lane.traffic.frames_received},
              {"retries", lane.traffic.retries},
              {"retransmitted_segments", lane.path.retransmitted_segments},
              {"round_trip_us", lane.path.known ? Json(us(lane.path.round_trip)) : Json(nullptr)},
              {"congestion_window_bytes", lane.path.congestion_window_bytes},
              {"delivery_rate_bytes_per_second", lane.path.delivery_rate}};
}

std::vector<std::string> PlacesOf(const transfer::ConnectionCounters& counters) {
  std::vector<std::string> places;
  for (const auto& lane : counters.lanes) {
    places.push_back(fmt::format("{} {} {}", lane.up, lane.info.local, lane.info.remote));
  }
  return places;
}

// Until the lanes have kept their places for a while.
transfer::ConnectionCounters Settled(transfer::Connection* connection) {
  const Deadline deadline = Deadline::After(kSettle);
  transfer::ConnectionCounters counters = connection->Counters();
  auto places = PlacesOf(counters);
  auto since = Clock::now();
  while (!deadline.expired() && Clock::now() - since < kStill && !connection->lost()) {
    // Nothing is expected: the wait lets the lanes move.
    (void)connection->TakeNotification(Deadline::After(kLook));
    counters = connection->Counters();
    auto now = PlacesOf(counters);
    if (std::exchange(places, now) != now) since = Clock::now();
  }
  return counters;
}

Result<Json> ConnectionInfo(Config config, const net::Address& peer) {
  // So that each lane has been asked about its way by the time it is shown.
  config.heartbeat_interval = std::min<microseconds>(config.heartbeat_interval, kStill / 3);
  // The port may be in use by the program whose settings these are.
  config.metrics_address.clear();
  FERRY_TRY_ASSIGN(auto endpoint, transfer::Endpoint::Create(config));
  FERRY_TRY_ASSIGN(auto connection,
                   endpoint.Connect(peer.ToString(), Deadline::After(config.connect_timeout)));
  const transfer::ConnectionCounters counters = Settled(&connection);
  Json info{{"address", counters.peer},
            {"endpoint", counters.endpoint},
            {"secret", !config.secret.empty() || !config.secret_file.empty()},
            {"lanes_lost", counters.traffic.lanes_lost},
            {"lanes_replaced", counters.traffic.lanes_replaced}};
  info["lanes"] = Json::array();
  for (const auto& lane : counters.lanes) info["lanes"].push_back(LaneInfo(lane));
  info["events"] = Json::array();
  for (const auto& event : connection.Events()) info["events"].push_back(event.text);
  connection.Close();
  return info;
}

}  // namespace

Result<PeerReport> PeerInfo(const Config& config, const std::string& peer) {
  FERRY_TRY_ASSIGN(const net::Address address, net::ParseAddress(peer, kPerfPort));
  FERRY_TRY_ASSIGN(const auto resolved,
                   net::Resolve(address, Deadline::After(config.connect_timeout)));
  Json info{{"peer", address.ToString()}};
  info["routes"] = Json::array();
  for (const net::Address& to : resolved) info["routes"].push_back(RouteInfo(config, to));
  auto connection = ConnectionInfo(config, address);
  if (connection) {
    info["connection"] = *std::move(connection);
    return PeerReport{std::move(info), Ok()};
  }
  info["error"] = ErrorToJson(connection.error())["error"];
  return PeerReport{std::move(info), connection.error()};
}

void PrintPeer(const Json& peer) {
  const auto text = [](const Json& object, const char* name) {
    const bool known = object.contains(name) && object[name].is_string();
    return known ? Printable(object[name].get<std::string>()) : std::string("-");
  };
  PrintLine("Peer " + text(peer, "peer"));
  for (const Json& route : peer["routes"]) {
    PrintLine(fmt::format("  {:<28} by {:<8} from {:<20} {}: {}", text(route, "address"),
                          text(route, "interface"), text(route, "source"),
                          route["used"].get<bool>() ? "used" : "not used", text(route, "why")));
  }
  if (!peer.contains("connection")) return;
  const Json& connection = peer["connection"];
  PrintLine(fmt::format(
      "  endpoint {} answers; {}", text(connection, "endpoint"),
      connection["secret"].get<bool>() ? "both sides know the secret" : "no secret was asked for"));
  std::size_t number = 0;
  for (const Json& lane : connection["lanes"]) {
    PrintLine(fmt::format("  lane {:<2} {} to {} by {}, {}, {}", number++, text(lane, "local"),
                          text(lane, "remote"), text(lane, "interface"),
                          lane["up"].get<bool>() ? "up" : "down",
                          text(lane, "congestion_control")));
    PrintLine(
        fmt::format("          {} B sent, {} B received, {} frames each way at least; round "
                    "trip {} us, window {} B, {} segments sent again",
                    DumpJson(lane["bytes_sent"]), DumpJson(lane["bytes_received"]),
                    std::min(lane["frames_sent"].get<std::uint64_t>(),
                             lane["frames_received"].get<std::uint64_t>()),
                    DumpJson(lane["round_trip_us"]), DumpJson(lane["congestion_window_bytes"]),
                    DumpJson(lane["retransmitted_segments"])));
  }
  for (const Json& event : connection["events"]) {
    PrintLine("  event: " + Printable(event.get<std::string>()));
  }
}

}  // namespace ferry::tools
