// Implements connected endpoints and scripted peers.
#include "tools/testing/peer_pair.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <utility>

#include "ferry/core/check.h"

namespace ferry::tools {
namespace {

transfer::Endpoint MakeEndpoint() {
  auto endpoint = transfer::Endpoint::Create(LoopbackConfig());
  FERRY_CHECK(endpoint, endpoint.error().message());
  return *std::move(endpoint);
}

std::string AddressOf(const transfer::Endpoint& endpoint) {
  return fmt::format("127.0.0.1:{}", endpoint.port());
}

}  // namespace

Config LoopbackConfig() {
  Config config;
  config.listen_host = "127.0.0.1";
  config.lanes = 1;
  config.workers = 1;
  return config;
}

PeerPair::PeerPair() : near_{MakeEndpoint(), {}}, far_{MakeEndpoint(), {}} {
  auto near = near_.endpoint.Connect(AddressOf(far_.endpoint), PeerDeadline());
  FERRY_CHECK(near, near.error().message());
  near_.connection.emplace(*std::move(near));
  auto far = far_.endpoint.Accept(PeerDeadline());
  FERRY_CHECK(far, far.error().message());
  far_.connection.emplace(*std::move(far));
}

// ---- servers ------------------------------------------------------------------------------------

ScriptedServer::ScriptedServer(Answers answers) : endpoint_(MakeEndpoint()) {
  heard_ = std::async(std::launch::async, [this, answers = std::move(answers)] {
    std::vector<Json> heard;
    auto connection = endpoint_.Accept(PeerDeadline());
    if (!connection) return heard;
    Control control(*connection);
    for (const Json& answer : answers) {
      auto question = control.Hear(PeerDeadline());
      if (!question) return heard;
      heard.push_back(*std::move(question));
      if (!control.Say(answer, PeerDeadline())) return heard;
    }
    // Until the client has read the last one, and leaves.
    (void)control.Hear(PeerDeadline());
    connection->Close();
    return heard;
  });
}

std::string ScriptedServer::address() const { return AddressOf(endpoint_); }

std::vector<Json> ScriptedServer::Heard() { return heard_.get(); }

// ---- clients ------------------------------------------------------------------------------------

ScriptedClient::ScriptedClient(const std::string& address) : client_{MakeEndpoint(), {}} {
  auto connection = client_.endpoint.Connect(address, PeerDeadline());
  FERRY_CHECK(connection, connection.error().message());
  client_.connection.emplace(*std::move(connection));
  control_.emplace(*client_.connection);
}

void ScriptedClient::Say(const Json& message) {
  const Status said = control_->Say(message, PeerDeadline());
  EXPECT_TRUE(said) << said.error().ToString();
}

Json ScriptedClient::Hear() {
  auto answer = control_->Hear(PeerDeadline());
  EXPECT_TRUE(answer) << answer.error().ToString();
  return answer ? *std::move(answer) : Json::object();
}

Json ScriptedClient::Ask(const Json& question) {
  Say(question);
  return Hear();
}

std::string ErrorText(const Json& answer) {
  const Status status = ErrorFromJson(answer);
  return status ? std::string() : status.error().message();
}

}  // namespace ferry::tools
