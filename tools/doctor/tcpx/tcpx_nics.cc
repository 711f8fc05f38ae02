// GPUDirect-TCPX: the network interfaces, and how near the GPUs are to them.
#include <fmt/core.h>

#include <algorithm>
#include <sstream>

#include "tools/doctor/checks.h"
#include "tools/doctor/tcpx/tcpx.h"

namespace ferry::tools {
namespace {

using tcpx::TakesInterface;

constexpr const char* kDataInterfaces = tcpx::kTcpxInterfacesVariable;
constexpr const char* kControlInterface = "NCCL_GPUDIRECTTCPX_CTRL_DEV";
constexpr const char* kA3Interfaces = "eth1,eth2,eth3,eth4";
constexpr const char* kSplitFlag = tcpx::kTcpxSplitFlag;
constexpr const char* kStrictFlag = "enable-strict-header-split";
constexpr const char* kBufferFlag = "enable-max-rx-buffer-size";
// A packet then holds a page of payload behind the headers of IPv4 and TCP with timestamps.
constexpr std::uint64_t kTcpHeaders = 52;
constexpr std::uint64_t kPageMtu = 4096 + kTcpHeaders;
constexpr std::uint64_t kTwoPagesMtu = 2 * 4096 + kTcpHeaders;
constexpr std::uint64_t kMaxFragments = 2048;  // of a request

Check NoTcpxInterface(std::string id) {
  return {std::move(id), Verdict::kSkipped, "the plugin would find no interface", ""};
}

std::string WordOf(const TcpxSetup& setup, const std::string& interface, const char* file) {
  const auto text = setup.system->ReadFile(fmt::format("/sys/class/net/{}/{}", interface, file));
  return text ? *text : std::string();
}

std::string Ipv4Of(const TcpxSetup& setup, const std::string& interface) {
  for (const net::InterfaceAddress& local : setup.system->Addresses()) {
    const bool ipv4 = local.host.find('.') != std::string::npos;
    if (ipv4 && local.interface == interface) return local.host;
  }
  return "";
}

std::string TcpxList(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

void AddDataInterface(const TcpxSetup& setup, const std::string& interface, Check* check) {
  const std::string state = WordOf(setup, interface, "operstate");
  const std::string host = Ipv4Of(setup, interface);
  const std::string word = ShellWord(interface);
  if (state == "down" || state == "lowerlayerdown") {
    check->Find(Verdict::kProblem, "{} is {}", interface, state);
    check->Fix("ip link set dev {} up", word);
  } else if (host.empty()) {
    check->Find(Verdict::kProblem, "{} has no IPv4 address", interface);
    check->Fix("ip address add ADDRESS/PREFIX dev {}", word);
  } else {
    check->Find(Verdict::kOk, "{} {}", interface, host);
  }
}

// ---- header split -------------------------------------------------------------------------------

// "on", "off", "n/a"; empty: it has no rings, or ethtool knows no such thing.
Result<std::string> DataSplitOf(const TcpxSetup& setup, const std::string& interface,
                                Deadline deadline) {
  constexpr std::string_view kKey = "TCP data split:";
  FERRY_TRY_ASSIGN(const CommandEnd end, setup.system->Run({"ethtool", "-g", interface}, deadline));
  // The limits come first, what is set comes last.
  const auto at = end.exit_code == 0 ? end.out.rfind(kKey) : std::string::npos;
  if (at == std::string::npos) return std::string();
  const auto words = WordsOf(end.out.substr(at + kKey.size(), 40));
  return words.empty() ? std::string() : words.front();
}

void AddSplitByFlags(const std::string& interface, const std::map<std::string, bool>& flags,
                     Check* check) {
  std::string wanted;
  Verdict verdict = Verdict::kOk;
  std::string off;
  for (const char* name : {kStrictFlag, kSplitFlag, kBufferFlag}) {
    const auto flag = flags.find(name);
    if (flag == flags.end()) continue;
    wanted += fmt::format(" {} on", name);
    if (flag->second) continue;
    // Without header split nothing can be received into a GPU; the other two matter less.
    verdict = std::max(verdict, name == kSplitFlag ? Verdict::kProblem : Verdict::kWarning);
    off += fmt::format("{}{}", off.empty() ? "" : ", ", name);
  }
  check->Find(verdict, "{}",
              off.empty() ? fmt::format("{} {} on", interface, kSplitFlag)
                          : fmt::format("{} {} off", interface, off));
  if (off.empty()) return;
  check->Fix("ethtool --set-priv-flags {}{}", ShellWord(interface), wanted);
}

// Other drivers have a setting of the ring (ethtool -g) in place of this private flag.
void AddSplitByRing(const TcpxSetup& setup, const std::string& interface, Deadline deadline,
                    Check* check) {
  const std::string word = ShellWord(interface);
  const auto split = DataSplitOf(setup, interface, deadline);
  if (!split) {
    check->Find(Verdict::kWarning, "{} has no flag {}, and {}", interface, kSplitFlag,
                split.error().message());
    check->Fix("apt-get install ethtool");
  } else if (*split == "on") {
    check->Find(Verdict::kOk, "{} TCP data split on", interface);
  } else if (*split == "off" || *split == "auto") {
    check->Find(Verdict::kProblem, "{} TCP data split {}", interface, *split);
    check->Fix("ethtool -G {} tcp-data-split on", word);
  } else {
    check->Find(Verdict::kProblem,
                "{} has no flag {} and no TCP data split: it cannot receive into a "
                "GPU",
                interface, kSplitFlag);
    check->Fix("ethtool -i {}", word);
  }
}

// ---- PCI ----------------------------------------------------------------------------------------

enum class Near { kApart, kSameRoot, kSameSwitch };

std::vector<std::string> PartsOf(const std::string& path) {
  std::istringstream stream(path);
  std::vector<std::string> parts;
  for (std::string part; std::getline(stream, part, '/');) {
    if (!part.empty()) parts.push_back(part);
  }
  return parts;
}

// "/sys/devices/pci0000:00/0000:00:01.0/0000:04:00.0": a root, bridges, the device. A root port has
// one link, so that what shares a bridge shares a switch.
Near NearnessOf(const std::string& a, const std::string& b) {
  const auto first = PartsOf(a);
  const auto second = PartsOf(b);
  const auto differ = std::mismatch(first.begin(), first.end(), second.begin(), second.end()).first;
  std::size_t below = 0;
  bool root = false;
  for (auto part = first.begin(); part != differ; ++part) {
    if (root) ++below;
    root = root || part->starts_with("pci");
  }
  if (!root) return Near::kApart;
  return below > 0 ? Near::kSameSwitch : Near::kSameRoot;
}

struct PciDevice {
  std::string name;
  std::string path;
};

std::vector<PciDevice> GpuDevices(const TcpxSetup& setup) {
  std::vector<PciDevice> devices;
  for (const std::string& gpu : setup.gpus) {
    // A link to the folder whose path shows the bridges above the device.
    if (auto path = setup.system->RealPath("/sys/bus/pci/devices/" + gpu)) {
      devices.push_back({gpu, *std::move(path)});
    }
  }
  return devices;
}

std::vector<PciDevice> NicDevices(const TcpxSetup& setup) {
  std::vector<PciDevice> devices;
  for (const std::string& name : setup.interfaces) {
    if (auto path = setup.system->RealPath(fmt::format("/sys/class/net/{}/device", name))) {
      devices.push_back({name, *std::move(path)});
    }
  }
  return devices;
}

// Virtual machines often show no switch at all: then a common root is as near as it gets.
Near NearestOf(const std::vector<PciDevice>& nics, const std::vector<PciDevice>& gpus) {
  Near nearest = Near::kApart;
  for (const PciDevice& nic : nics) {
    for (const PciDevice& gpu : gpus) nearest = std::max(nearest, NearnessOf(nic.path, gpu.path));
  }
  // The least that is asked of every interface: it should be as near as the nearest one is.
  return std::max(nearest, Near::kSameRoot);
}

void AddDistance(const TcpxSetup& setup, const PciDevice& nic, const std::vector<PciDevice>& gpus,
                 Near wanted, Check* check) {
  std::vector<std::string> near;
  for (const PciDevice& gpu : gpus) {
    if (NearnessOf(nic.path, gpu.path) >= wanted) near.push_back(gpu.name);
  }
  const char* const shared = wanted == Near::kSameSwitch ? "switch" : "root";
  if (!near.empty()) {
    check->Find(Verdict::kOk, "{} shares a PCI {} with {}", nic.name, shared, TcpxList(near));
    return;
  }
  check->Find(setup.chosen ? Verdict::kProblem : Verdict::kNote, "{} shares a PCI {} with no GPU",
              nic.name, shared);
  if (check->fix.empty()) {
    check->fix = fmt::format("nvidia-smi topo -m  # and leave it out of {}", kDataInterfaces);
  }
}

}  // namespace

Check CheckTcpxInterfaces(const TcpxSetup& setup) {
  Check check{"tcpx_interfaces", Verdict::kOk, "", ""};
  const std::string list = setup.Variable(kDataInterfaces).value_or("");
  for (const std::string& entry : TcpxEntries(list)) {
    // A list of what is not used may name what is not there.
    if (list.starts_with("^")) break;
    const bool exact = list.starts_with("=");
    const bool found =
        std::any_of(setup.interfaces.begin(), setup.interfaces.end(),
                    [&](const auto& name) { return TakesInterface(entry, exact, name); });
    if (!found) {
      check.Find(Verdict::kProblem, "{} names {}, and there is none", kDataInterfaces, entry);
    }
  }
  for (const std::string& interface : setup.interfaces) AddDataInterface(setup, interface, &check);
  if (setup.interfaces.empty()) {
    check.Find(Verdict::kProblem, "the plugin would find no interface");
  }
  if (!setup.chosen) {
    check.Find(Verdict::kWarning,
               "{} is not set, and the plugin takes all of these, that of the host "
               "itself, too",
               kDataInterfaces);
    check.Fix("export {}={}  # those near the GPUs", kDataInterfaces, kA3Interfaces);
  }
  if (check.verdict == Verdict::kProblem && check.fix.empty()) check.fix = "ip -brief address";
  return check;
}

std::optional<Check> CheckTcpxPeer(const Context& context) {
  const TcpxSetup setup = TcpxSetupOf(context.system);
  if (context.resolved.empty() || (!context.tcpx && !HintsAtTcpx(setup))) return std::nullopt;
  Check check{"tcpx_peer", Verdict::kOk, "", ""};
  for (const net::Address& peer : context.resolved) {
    const auto route = context.system->RouteTo(peer);
    if (!route) {
      check.Find(Verdict::kSkipped, "{}: {}", peer.host, route.error().message());
      continue;
    }
    const auto& data = setup.interfaces;
    if (route->local) {
      check.Find(Verdict::kWarning,
                 "{} is an address of this machine: data that does not leave an interface never "
                 "reaches a GPU, and the plugin then ends the process (rx no cmsg)",
                 peer.host);
      check.Fix(
          "ip -brief address  # on the other machine: dial an address of its data interfaces");
    } else if (std::find(data.begin(), data.end(), route->interface) != data.end()) {
      check.Find(Verdict::kOk, "{} by {}", peer.host, route->interface);
    } else if (setup.Variable(kControlInterface) == route->interface) {
      check.Find(Verdict::kNote, "{} by {}, which carries control connections; data goes by {}",
                 peer.host, route->interface, TcpxList(data));
    } else {
      check.Find(Verdict::kWarning, "{} by {}, which is not an interface of the data ({})",
                 peer.host, route->interface, TcpxList(data));
      check.Fix("ip route get {}  # dial an address in the networks of {}", ShellWord(peer.host),
                TcpxList(data));
    }
  }
  return check;
}

Check CheckTcpxControl(const TcpxSetup& setup) {
  Check check{"tcpx_control", Verdict::kOk, "", ""};
  const auto name = setup.Variable(kControlInterface);
  if (!name) {
    check.verdict = Verdict::kNote;
    check.evidence = fmt::format(
        "{} is not set: control connections go by the interfaces of the data", kControlInterface);
    check.fix = fmt::format("export {}=eth0", kControlInterface);
    return check;
  }
  const std::string state = WordOf(setup, *name, "operstate");
  const std::string host = Ipv4Of(setup, *name);
  check.evidence =
      fmt::format("{}={}{}", kControlInterface, *name, host.empty() ? "" : ", " + host);
  if (state.empty()) {
    check.Find(Verdict::kProblem, "there is no such interface");
  } else if (state == "down" || state == "lowerlayerdown") {
    check.Find(Verdict::kProblem, "which is {}", state);
  } else if (host.empty()) {
    check.Find(Verdict::kProblem, "which has no IPv4 address");
  }
  if (check.verdict != Verdict::kOk) check.fix = "ip -brief address";
  return check;
}

Check CheckTcpxHeaderSplit(const TcpxSetup& setup, Deadline deadline) {
  Check check{"tcpx_header_split", Verdict::kOk, "", ""};
  if (setup.interfaces.empty()) return NoTcpxInterface(check.id);
  for (const std::string& interface : setup.interfaces) {
    const auto switches = setup.system->SwitchesOf(interface);
    if (!switches) {
      check.Find(Verdict::kProblem, "{}", switches.error().message());
    } else if (switches->private_flags.count(kSplitFlag) != 0) {
      AddSplitByFlags(interface, switches->private_flags, &check);
    } else {
      AddSplitByRing(setup, interface, deadline, &check);
    }
  }
  return check;
}

Check CheckTcpxSteering(const TcpxSetup& setup) {
  Check check{"tcpx_steering", Verdict::kOk, "", ""};
  if (setup.interfaces.empty()) return NoTcpxInterface(check.id);
  for (const std::string& interface : setup.interfaces) {
    const auto switches = setup.system->SwitchesOf(interface);
    if (!switches) {
      check.Find(Verdict::kProblem, "{}", switches.error().message());
    } else if (!switches->ntuple) {
      check.Find(Verdict::kProblem, "{} tells no ntuple filters", interface);
    } else if (*switches->ntuple) {
      check.Find(Verdict::kOk, "{} ntuple filters on", interface);
    } else {
      check.Find(Verdict::kProblem, "{} ntuple filters off: no flow gets to a GPU's queue",
                 interface);
      check.Fix("ethtool -K {} ntuple on", ShellWord(interface));
    }
  }
  return check;
}

Check CheckTcpxMtu(const TcpxSetup& setup) {
  Check check{"tcpx_mtu", Verdict::kOk, "", ""};
  if (setup.interfaces.empty()) return NoTcpxInterface(check.id);
  const std::uint64_t chunk = TcpxChunkSize(setup).value_or(0);
  for (const std::string& interface : setup.interfaces) {
    const auto mtu = NumberIn(WordOf(setup, interface, "mtu"));
    if (!mtu || *mtu <= kTcpHeaders) {
      check.Find(Verdict::kSkipped, "{} tells no MTU", interface);
      continue;
    }
    const std::uint64_t fragments = chunk / (*mtu - kTcpHeaders);
    if (fragments >= kMaxFragments) {
      check.Find(Verdict::kProblem,
                 "{} {}: a chunk of {} bytes would come in {} fragments, and from "
                 "{} on the plugin ends the process",
                 interface, *mtu, chunk, fragments, kMaxFragments);
    } else if (*mtu < kPageMtu) {
      check.Find(Verdict::kWarning, "{} {}: packets of less than a page", interface, *mtu);
    } else {
      check.Find(Verdict::kOk, "{} {}", interface, *mtu);
      continue;
    }
    check.Fix("ip link set dev {} mtu {}", ShellWord(interface), kTwoPagesMtu);
  }
  if (!check.fix.empty()) check.fix += "  # and in the network between the machines";
  return check;
}

Check CheckTcpxDistance(const TcpxSetup& setup) {
  Check check{"tcpx_distance", Verdict::kOk, "", ""};
  const auto gpus = GpuDevices(setup);
  const auto nics = NicDevices(setup);
  if (gpus.empty()) {
    check.verdict = Verdict::kSkipped;
    check.evidence = "NVIDIA's driver shows no GPU in /proc/driver/nvidia/gpus";
    return check;
  }
  const Near wanted = NearestOf(nics, gpus);
  for (const PciDevice& nic : nics) AddDistance(setup, nic, gpus, wanted, &check);
  if (nics.size() < setup.interfaces.size()) {
    std::vector<std::string> virtual_ones = setup.interfaces;
    for (const PciDevice& nic : nics) {
      virtual_ones.erase(std::find(virtual_ones.begin(), virtual_ones.end(), nic.name));
    }
    check.Find(setup.chosen ? Verdict::kProblem : Verdict::kNote, "{} without a PCI device",
               TcpxList(virtual_ones));
    if (check.fix.empty()) check.fix = "ls -l /sys/class/net/*/device";
  }
  if (wanted == Near::kSameRoot) {
    check.Find(Verdict::kNote, "no interface shares a PCI switch with a GPU, as far as is shown");
  }
  return check;
}

}  // namespace ferry::tools
