#include "ferry/transfer/strangers.h"

#include <algorithm>

#include "ferry/core/check.h"

namespace ferry::transfer {

Strangers::Strangers(std::size_t most) : most_(most), share_(std::max(most / 2, kMaxLanes)) {}

std::vector<std::uint64_t> Strangers::Enter(std::uint64_t id, const std::string& host,
                                            bool same_machine) {
  std::vector<std::uint64_t> leaving;
  const auto of_host = by_host_.find(host);
  if (!same_machine && of_host != by_host_.end() && of_host->second >= share_) {
    leaving.push_back(WhoGoes(host));
  } else if (all_.size() >= most_) {
    leaving.push_back(WhoGoes(MostCrowded()));
  }
  for (const std::uint64_t gone : leaving) Leave(gone);
  all_.emplace(id, Stranger{host, false});
  ++by_host_[host];
  return leaving;
}

void Strangers::HasSpoken(std::uint64_t id) {
  if (const auto it = all_.find(id); it != all_.end()) it->second.spoken = true;
}

void Strangers::Leave(std::uint64_t id) {
  const auto it = all_.find(id);
  if (it == all_.end()) return;
  const auto of_host = by_host_.find(it->second.host);
  if (--of_host->second == 0) by_host_.erase(of_host);
  all_.erase(it);
}

std::uint64_t Strangers::WhoGoes(const std::string& host) const {
  const auto is_silent = [&](const auto& one) {
    return one.second.host == host && !one.second.spoken;
  };
  auto it = std::find_if(all_.begin(), all_.end(), is_silent);
  if (it == all_.end()) {
    it = std::find_if(all_.begin(), all_.end(),
                      [&](const auto& one) { return one.second.host == host; });
  }
  FERRY_CHECK(it != all_.end(), host);
  return it->first;
}

const std::string& Strangers::MostCrowded() const {
  return std::max_element(by_host_.begin(), by_host_.end(),
                          [](const auto& a, const auto& b) { return a.second < b.second; })
      ->first;
}

}  // namespace ferry::transfer
