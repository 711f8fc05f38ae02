// Two network namespaces owned by a test, with rate-limited links between them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ferry::tests {

struct LinkSpec {
  int mbits = 0;  // per second, in each direction; 0: not limited
};

struct PairOptions {
  std::vector<LinkSpec> links;
  int mtu = 9000;
  bool ipv6 = false;  // and no IPv4
  // All links are in the subnet of the first; the routes of both sides use that one alone.
  bool one_subnet = false;
};

// The interfaces are l0, l1, ... in both; addresses are those of near() and far(). The destructor
// removes everything. A failing command throws its output.
class NetworkPair {
 public:
  // The reason why this process cannot create namespaces; empty if it can.
  static std::optional<std::string> Missing();

  explicit NetworkPair(const PairOptions& options);
  ~NetworkPair();
  NetworkPair(const NetworkPair&) = delete;
  NetworkPair& operator=(const NetworkPair&) = delete;

  const std::string& near() const noexcept { return near_; }
  const std::string& far() const noexcept { return far_; }
  // Without brackets.
  std::string FarAddress(std::size_t link) const { return AddressOf(link, 2); }
  // What a side's end of the link has sent since it was made.
  std::uint64_t SentBytes(const std::string& network, std::size_t link) const;

  // Sets the near end of the link down, or up, for both sides.
  void SetLink(std::size_t link, bool up);
  // The ports that dials of the near side are given as their own.
  void SetDialPorts(int first, int last);
  void SetRate(std::size_t link, int mbits);
  // The link is up, and loses everything in both directions.
  void SetBlackHole(std::size_t link, bool on);

 private:
  // `side`: 1 near, 2 far.
  std::string AddressOf(std::size_t link, std::size_t side) const;
  void Limit(const std::string& network, std::size_t link, int mbits, const char* verb);

  const PairOptions options_;
  std::string near_;
  std::string far_;
};

// One network namespace of the test's own, in which connects to kHost come from kSources, any
// address of which may be bound: as from so many other machines. For machines without veth, too.
class OneNetwork {
 public:
  static constexpr const char* kHost = "10.77.0.1";
  static constexpr const char* kSources = "10.78";  // and two more numbers

  // The reason why this process cannot create one; empty if it can.
  static std::optional<std::string> Missing();

  OneNetwork();
  ~OneNetwork();
  OneNetwork(const OneNetwork&) = delete;
  OneNetwork& operator=(const OneNetwork&) = delete;

  const std::string& name() const noexcept { return name_; }
  // So many more interfaces, each with an address.
  void AddInterfaces(int count);

 private:
  std::string name_;
};

// Moves the calling thread into a network namespace; "" leaves it where it is. Threads that it
// starts later, and their sockets, are in it too. Throws on failure.
void EnterNetwork(const std::string& network);

}  // namespace ferry::tests
