// Limits and errors that the parts of a lane have in common.
#include "ferry/transfer/lane/lane_site.h"

#include <fmt/core.h>

#include <numeric>

namespace ferry::transfer {

LaneShares::LaneShares(std::size_t lanes, std::size_t first_bulk)
    : first_bulk_(first_bulk), rates_(lanes), shares_(lanes) {
  for (auto& share : shares_) share = 1 / static_cast<double>(lanes - first_bulk);
}

void LaneShares::SetRate(std::size_t lane, std::uint64_t rate) {
  const std::lock_guard lock(mutex_);
  rates_[lane] = rate;
  const auto bulk = rates_.begin() + static_cast<std::ptrdiff_t>(first_bulk_);
  const auto known = static_cast<double>(rates_.end() - bulk - std::count(bulk, rates_.end(), 0));
  const auto sum = static_cast<double>(std::accumulate(bulk, rates_.end(), std::uint64_t{0}));
  const auto lanes = static_cast<double>(rates_.end() - bulk);
  for (std::size_t i = first_bulk_; i < rates_.size(); ++i) {
    if (rates_[i] != 0) shares_[i] = static_cast<double>(rates_[i]) / sum * known / lanes;
  }
}

std::size_t LaneSite::max_sequenced() const {
  const std::size_t in_messages = index == 0 ? context.config->max_operations : 0;
  return kMaxUnacked + kMaxReplies + in_messages;
}

Error MalformedFrame(const LaneSite& site, const char* what) {
  return Error(Code::kCorrupt,
               fmt::format("{} sent a malformed frame ({}); the connection was closed, reconnect "
                           "with the same release on both sides",
                           site.context.peer_name, what));
}

}  // namespace ferry::transfer
