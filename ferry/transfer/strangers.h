#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

namespace ferry::transfer {

// Who is at the door and not known yet, and who has to go when it is crowded. A pure table.
//
// A new one always comes in: a peer that has something to say must not find the place taken by
// those who say nothing. In its stead goes one of the address that has the most of them there, so
// that a flood pushes out itself; of those the oldest that has said nothing, or else the oldest. A
// peer is therefore out of reach of a silent flood as soon as its first frame is here, and before
// that for as long as it takes so many others to come.
//
// No address of another machine may have more than half of the places, or kMaxLanes of them: then
// one of its own goes. Loopback addresses are not held to that: all users of a machine share them,
// and one that means harm has nearer ways.
class Strangers {
 public:
  // A peer's lanes come all at once.
  static constexpr std::size_t kMaxLanes = 64;

  explicit Strangers(std::size_t most);

  // Enters `id`, which is greater than any before; returns those who have to go, who are no longer
  // in the table.
  std::vector<std::uint64_t> Enter(std::uint64_t id, const std::string& host, bool same_machine);
  // It has said something that is a greeting.
  void HasSpoken(std::uint64_t id);
  // It is known, or gone.
  void Leave(std::uint64_t id);

  std::size_t size() const noexcept { return all_.size(); }
  std::size_t share() const noexcept { return share_; }

 private:
  struct Stranger {
    std::string host;
    bool spoken = false;
  };

  std::uint64_t WhoGoes(const std::string& host) const;
  const std::string& MostCrowded() const;

  const std::size_t most_;
  const std::size_t share_;
  std::map<std::uint64_t, Stranger> all_;  // oldest first
  std::unordered_map<std::string, std::size_t> by_host_;
};

}  // namespace ferry::transfer
