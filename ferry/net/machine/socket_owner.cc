// Lists of sockets in memfds, and the look-up of a connection's other end.
#include "ferry/net/machine/socket_owner.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <iterator>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>

#include "ferry/core/deadline.h"
#include "ferry/core/fd.h"
#include "ferry/core/fork.h"
#include "ferry/net/address.h"
#include "ferry/net/machine/netlink.h"
#include "ferry/net/provider.h"

namespace ferry::net {
namespace {

constexpr const char* kListName = "ferry-sockets";
constexpr unsigned kNoExec = 0x8;  // MFD_NOEXEC_SEAL, which older headers lack

// Kernels with vm.memfd_noexec=2 make no list without that flag; those before Linux 6.3 do not know
// it.
UniqueFd NewList() {
  int fd = ::memfd_create(kListName, MFD_CLOEXEC | kNoExec);
  if (fd < 0 && errno == EINVAL) fd = ::memfd_create(kListName, MFD_CLOEXEC);
  return ClosedInChildren(UniqueFd(fd));
}

// A listed socket: the kernel's cookie of it, which is never given to two sockets, and its
// descriptor. 0: free.
struct Entry {
  std::uint64_t cookie = 0;
  std::int64_t descriptor = 0;
};
// Entries are in the bucket of their cookie, so that a peer reads one bucket however many sockets
// there are. The kernel counts cookies up, which spreads them evenly.
using Bucket = std::array<Entry, 8>;
// A cookie has a bucket in the first 2 MiB of the list and another in its first 64 KiB. The second
// is used where the first is full or lies beyond the process's limit of file sizes (`ulimit -f`),
// which applies to memfds, too.
constexpr std::uint64_t kBuckets[] = {1 << 14, 1 << 9};

off_t PlaceOf(std::uint64_t cookie, std::uint64_t buckets) {
  return static_cast<off_t>(cookie % buckets * sizeof(Bucket));
}

// The bucket at `place`; past the end of the file its entries are free.
Bucket ReadBucket(int list, off_t place) {
  Bucket bucket{};
  (void)!::pread(list, bucket.data(), sizeof bucket, place);
  return bucket;
}

// Whether a bucket at `place` can be written. A write beyond the limit raises SIGXFSZ, which ends a
// process that does not ignore it.
bool IsBelowTheLimit(off_t place) {
  rlimit limit{};
  return ::getrlimit(RLIMIT_FSIZE, &limit) == 0 &&
         static_cast<rlim_t>(place) + sizeof(Bucket) <= limit.rlim_cur;
}

struct SocketList {
  UniqueFd fd = NewList();
  std::mutex mutex;  // over what is written
  int count = 0;     // of listed sockets

  // Puts `entry` into the place of the one that has the cookie `old`, in a bucket of `cookie`.
  // Where both are full or beyond the limit, the socket is not listed. Returns how many are listed
  // now.
  int Replace(std::uint64_t cookie, std::uint64_t old, const Entry& entry) {
    const std::lock_guard lock(mutex);
    if (!fd) return count;
    for (const std::uint64_t buckets : kBuckets) {
      const off_t place = PlaceOf(cookie, buckets);
      const Bucket bucket = ReadBucket(fd.get(), place);
      const auto* const found = std::find_if(bucket.begin(), bucket.end(),
                                             [old](const Entry& at) { return at.cookie == old; });
      if (found == bucket.end() || !IsBelowTheLimit(place)) continue;
      const auto index = static_cast<off_t>(found - bucket.begin());
      (void)!::pwrite(fd.get(), &entry, sizeof entry,
                      place + index * static_cast<off_t>(sizeof entry));
      return count += entry.cookie != 0 ? 1 : -1;
    }
    return count;
  }
};

// A forked child has a list of its own, and never touches that of its parent.
SocketList& OwnList() {
  static PerProcess<SocketList> lists;
  return lists.Get();
}

std::uint64_t CookieOf(int socket) {
  std::uint64_t cookie = 0;
  socklen_t bytes = sizeof cookie;
  return ::getsockopt(socket, SOL_SOCKET, SO_COOKIE, &cookie, &bytes) == 0 ? cookie : 0;
}

std::optional<SocketEnd> EndOf(const Result<RawAddress>& raw) {
  if (!raw) return std::nullopt;
  SocketEnd end;
  if (raw->family() == AF_INET) {
    sockaddr_in v4{};
    std::memcpy(&v4, &raw->storage, sizeof v4);
    end.port = v4.sin_port;
    end.address[0] = v4.sin_addr.s_addr;
  } else {
    sockaddr_in6 v6{};
    std::memcpy(&v6, &raw->storage, sizeof v6);
    end.port = v6.sin6_port;
    std::memcpy(end.address.data(), &v6.sin6_addr, sizeof end.address);
  }
  return end;
}

// As ToRaw(FromRaw()), which turns IPv4 in IPv6 into IPv4.
Result<RawAddress> NameOf(int socket, int (*get)(int, sockaddr*, socklen_t*)) {
  RawAddress raw;
  raw.length = sizeof raw.storage;
  auto* name = reinterpret_cast<sockaddr*>(&raw.storage);  // as in RawAddress::get()
  if (get(socket, name, &raw.length) != 0) {
    return ErrnoError("socket name", errno);
  }
  return ToRaw(FromRaw(raw));
}

struct KernelSocket {
  std::uint64_t cookie = 0;
  std::uint32_t inode = 0;
  std::uint32_t uid = 0;
};

// The socket of this network namespace whose ends are these, and which is bound to no interface or
// to this one.
std::optional<KernelSocket> Find(Netlink* kernel, int family, const SocketEnd& local,
                                 const SocketEnd& remote, int interface) {
  inet_diag_req_v2 request{};
  request.sdiag_family = static_cast<std::uint8_t>(family);
  request.sdiag_protocol = IPPROTO_TCP;
  request.idiag_states = ~0U;
  request.id.idiag_sport = local.port;
  request.id.idiag_dport = remote.port;
  std::copy(local.address.begin(), local.address.end(), request.id.idiag_src);
  std::copy(remote.address.begin(), remote.address.end(), request.id.idiag_dst);
  request.id.idiag_if = static_cast<std::uint32_t>(interface);
  request.id.idiag_cookie[0] = request.id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
  const auto answer =
      kernel->Ask(SOCK_DIAG_BY_FAMILY, std::as_bytes(std::span(&request, 1)), SOCK_DIAG_BY_FAMILY);
  inet_diag_msg found{};
  if (!answer || answer->size() < sizeof found) return std::nullopt;
  std::memcpy(&found, answer->data(), sizeof found);
  // The kernel also finds a listener of the local port.
  if (found.id.idiag_dport != remote.port || found.idiag_inode == 0) return std::nullopt;
  const std::uint64_t high = found.id.idiag_cookie[1];
  return KernelSocket{high << 32 | found.id.idiag_cookie[0], found.idiag_inode, found.idiag_uid};
}

// The socket at the other end of one that is bound to `interface`. It may be bound although that
// one is not: a listener that is bound to the interface of its address also takes connections from
// this machine.
std::optional<KernelSocket> FindOther(Netlink* kernel, const SocketEnds& ends, int interface) {
  if (auto found = Find(kernel, ends.family, ends.remote, ends.local, interface)) return found;
  const std::size_t bytes = ends.family == AF_INET ? sizeof(in_addr) : sizeof(in6_addr);
  const int holder =
      AskHolder(ends.family, std::as_bytes(std::span(ends.remote.address)).first(bytes));
  if (holder == interface) return std::nullopt;
  return Find(kernel, ends.family, ends.remote, ends.local, holder);
}

std::string TargetOf(int folder, const std::string& link) {
  std::string target(256, '\0');
  const ssize_t length = ::readlinkat(folder, link.c_str(), target.data(), target.size());
  target.resize(static_cast<std::size_t>(std::max<ssize_t>(length, 0)));
  return target;
}

// A process with a list that runs under our user id and in our user namespace.
class OwnProcess {
 public:
  // `what` says where the kernel has it. Null if there is no such process.
  static std::shared_ptr<const OwnProcess> Open(const ProcessHint& what) {
    UniqueFd folder(
        ::open(fmt::format("/proc/{}", what.pid).c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (!folder || !IsInOurNamespace(folder.get()) || !RunsAsUs(folder.get())) return nullptr;
    UniqueFd list = OpenList(folder.get(), fmt::format("fd/{}", what.list));
    if (!list) return nullptr;
    return std::make_shared<const OwnProcess>(ClosedInChildren(std::move(folder)),
                                              ClosedInChildren(std::move(list)));
  }
  OwnProcess(UniqueFd folder, UniqueFd list) : folder_(std::move(folder)), list_(std::move(list)) {}

  // Whether it has this socket, and has listed it. False once it has ended, even if another process
  // has its number then.
  bool Has(const KernelSocket& socket) const {
    return std::any_of(std::begin(kBuckets), std::end(kBuckets), [&](std::uint64_t buckets) {
      const Bucket bucket = ReadBucket(list_.get(), PlaceOf(socket.cookie, buckets));
      return std::any_of(bucket.begin(), bucket.end(), [&](const Entry& entry) {
        return entry.cookie == socket.cookie &&
               TargetOf(folder_.get(), fmt::format("fd/{}", entry.descriptor)) ==
                   fmt::format("socket:[{}]", socket.inode);
      });
    });
  }

 private:
  static bool IsInOurNamespace(int folder) {
    struct stat theirs {};
    struct stat ours {};
    return ::fstatat(folder, "ns/user", &theirs, 0) == 0 &&
           ::stat("/proc/self/ns/user", &ours) == 0 && theirs.st_dev == ours.st_dev &&
           theirs.st_ino == ours.st_ino;
  }

  // Whether all four user ids of the process are ours: one that has given up its own may still hold
  // what it made before.
  static bool RunsAsUs(int folder) {
    const UniqueFd status(::openat(folder, "status", O_RDONLY | O_CLOEXEC));
    std::string text(4096, '\0');
    return status && ::read(status.get(), text.data(), text.size()) > 0 &&
           text.find(fmt::format("\nUid:\t{0}\t{0}\t{0}\t{0}\n", ::geteuid())) != std::string::npos;
  }

  // Looks at the descriptor before it opens the file, since opening some files has effects.
  static UniqueFd OpenList(int folder, const std::string& descriptor) {
    const UniqueFd path(::openat(folder, descriptor.c_str(), O_PATH | O_CLOEXEC));
    struct stat info {};
    if (!path || ::fstat(path.get(), &info) != 0 || !S_ISREG(info.st_mode) || info.st_nlink != 0 ||
        info.st_uid != ::geteuid() ||
        TargetOf(folder, descriptor) != fmt::format("/memfd:{} (deleted)", kListName)) {
      return {};
    }
    return UniqueFd(
        ::open(fmt::format("/proc/self/fd/{}", path.get()).c_str(), O_RDONLY | O_CLOEXEC));
  }

  const UniqueFd folder_;
  const UniqueFd list_;
};

// Keeps what a proof opens for the further lanes of its connection, until no socket is listed any
// more: opening it takes 14 of a proof's 22 system calls.
class Proofs {
 public:
  // The socket at the other end of `socket`, whose ends are `ends`; nothing if it is unknown.
  std::optional<KernelSocket> OtherEnd(int socket, const SocketEnds& ends) {
    const int interface = BoundTo(socket);
    const std::uint64_t network = NamespaceOf(socket);
    const std::lock_guard lock(mutex_);
    // A socket may belong to another network namespace, where the same ends are another connection.
    if (!kernel_ || network == 0 || network != network_) {
      kernel_.emplace(NETLINK_SOCK_DIAG);
      if (!*kernel_) {
        kernel_.reset();
        return std::nullopt;
      }
      network_ = kernel_->network();
      if (network_ != network) return std::nullopt;
    }
    if (network == 0) {
      // The kernel does not tell namespaces: the socket itself must be found where we ask.
      const auto own = Find(&*kernel_, ends.family, ends.local, ends.remote, interface);
      if (!own || own->cookie != CookieOf(socket)) return std::nullopt;
    }
    return FindOther(&*kernel_, ends, interface);
  }

  // The process that was asked for last is opened again after a second, because it may have given
  // up its user id: sockets that it makes then are not ours, but older ones are.
  std::shared_ptr<const OwnProcess> Open(const ProcessHint& what) {
    const std::lock_guard lock(mutex_);
    if (what != what_ || !process_ || Clock::now() > until_) {
      process_ = OwnProcess::Open(what);
      what_ = what;
      until_ = Clock::now() + std::chrono::seconds(1);
    }
    return process_;
  }

  // Closes all descriptors.
  void Forget() {
    const std::lock_guard lock(mutex_);
    process_.reset();
    kernel_.reset();
  }

 private:
  std::mutex mutex_;  // over the rest
  std::optional<Netlink> kernel_;
  std::uint64_t network_ = 0;  // that kernel_ asks
  ProcessHint what_;
  std::shared_ptr<const OwnProcess> process_;
  Clock::time_point until_;
};

Proofs& KeptProofs() {
  static PerProcess<Proofs> kept;
  return kept.Get();
}

}  // namespace

std::optional<SocketEnds> EndsOf(int socket) {
  const auto name = NameOf(socket, ::getsockname);
  const auto local = EndOf(name);
  const auto remote = EndOf(NameOf(socket, ::getpeername));
  if (!local || !remote) return std::nullopt;
  return SocketEnds{name->family(), *local, *remote};
}

ProcessHint ThisProcess() {
  const SocketList& list = OwnList();
  return list.fd ? ProcessHint{::getpid(), list.fd.get()} : ProcessHint{};
}

ListedSocket::ListedSocket(int socket) : cookie_(CookieOf(socket)) {
  if (cookie_ != 0) (void)OwnList().Replace(cookie_, 0, {cookie_, socket});
}

ListedSocket::~ListedSocket() {
  if (cookie_ != 0 && OwnList().Replace(cookie_, cookie_, {}) == 0) KeptProofs().Forget();
}

bool IsHeldBy(const ProcessHint& process, int socket) {
  const auto ends = EndsOf(socket);
  if (process.pid <= 0 || !ends) return false;
  const auto other = KeptProofs().OtherEnd(socket, *ends);
  if (!other || other->uid != ::geteuid()) return false;
  const auto owner = KeptProofs().Open(process);
  return owner && owner->Has(*other);
}

Status RequireProof(Lane* lane, const ProcessHint& process, const std::string& peer_name) {
  errno = 0;
  if (lane->ProvePeer(process)) return Ok();
  if (errno == EMFILE || errno == ENFILE) return ErrnoError("finding out who the peer is", errno);
  return Error(Code::kRefused,
               fmt::format("{} is an address of this machine, but it is not proved that a process "
                           "of user {} is there itself: it may be a proxy, another user or a "
                           "container; set FERRY_SECRET_FILE on both sides, or FERRY_INSECURE=on "
                           "in a network you trust",
                           peer_name, ::geteuid()));
}

}  // namespace ferry::net
