// Two connected endpoints in the test's own process, and peers that follow a script.
#pragma once
#include <functional>
#include <future>
#include <optional>
#include <string>
#include <vector>

#include "ferry/core/config.h"
#include "ferry/transfer/endpoint.h"
#include "tools/support/json.h"
#include "tools/support/operations.h"

namespace ferry::tools {

// The deadline of what ends at once unless something is broken.
inline Deadline PeerDeadline() { return Deadline::After(std::chrono::seconds(60)); }

// Few lanes and threads, at a free port of the loopback interface.
Config LoopbackConfig();

// An endpoint with a connection of its own. Made by ConnectedPair and by the classes below.
struct Peer {
  transfer::Endpoint endpoint;
  std::optional<transfer::Connection> connection;
};

// A connection between two endpoints of this process; a failure fails the test.
class PeerPair {
 public:
  PeerPair();
  transfer::Connection& near() { return *near_.connection; }
  transfer::Connection& far() { return *far_.connection; }
  transfer::Endpoint& near_endpoint() { return near_.endpoint; }
  transfer::Endpoint& far_endpoint() { return far_.endpoint; }

 private:
  Peer near_;
  Peer far_;
};

// A server that accepts one connection and answers its messages in order, each with the next of its
// answers, whatever is asked; then, or when the client leaves, it closes.
class ScriptedServer {
 public:
  using Answers = std::vector<Json>;
  explicit ScriptedServer(Answers answers);
  std::string address() const;
  // What the client has asked so far, when it has ended. Waits for the end.
  std::vector<Json> Heard();

 private:
  transfer::Endpoint endpoint_;
  std::future<std::vector<Json>> heard_;
};

// A client of a server, which says what the test tells it.
class ScriptedClient {
 public:
  explicit ScriptedClient(const std::string& address);
  // The answer to a message; a server's error is {"error": ...}, and a lost one an empty object.
  Json Ask(const Json& question);
  void Say(const Json& message);
  Json Hear();
  transfer::Connection& connection() { return *client_.connection; }

 private:
  Peer client_;
  std::optional<Control> control_;
};

// The text of an answer's error; empty where it reports none.
std::string ErrorText(const Json& answer);

}  // namespace ferry::tools
