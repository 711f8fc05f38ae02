// The dials of an endpoint that are in progress.
#pragma once
#include <mutex>
#include <set>
#include <string>

namespace ferry::transfer {

// Records the local address and port of each dial in progress, so that an endpoint recognizes an
// incoming connection as its own. Any thread.
class OwnCalls {
 public:
  void Begin(const std::string& local_name) {
    const std::lock_guard lock(mutex_);
    calls_.insert(local_name);
  }
  // Ends one dial from this address.
  void End(const std::string& local_name) {
    const std::lock_guard lock(mutex_);
    if (const auto it = calls_.find(local_name); it != calls_.end()) calls_.erase(it);
  }
  bool Contains(const std::string& remote_name) const {
    const std::lock_guard lock(mutex_);
    return calls_.count(remote_name) > 0;
  }

 private:
  mutable std::mutex mutex_;
  std::multiset<std::string> calls_;
};

}  // namespace ferry::transfer
