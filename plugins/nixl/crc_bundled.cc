// The one function of ISA-L that the library uses, which is installed as a shared library only: the
// plug-in is carried to machines that do not have it.
#include <array>
#include <cstdint>
#include <cstring>

namespace {

// The Castagnoli polynomial, reflected.
constexpr std::uint32_t kPolynomial = 0x82f63b78;

constexpr std::array<std::uint32_t, 256> Table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < table.size(); ++i) {
    std::uint32_t state = i;
    for (int bit = 0; bit < 8; ++bit) state = (state >> 1) ^ ((state & 1) != 0 ? kPolynomial : 0);
    table[i] = state;
  }
  return table;
}
constexpr auto kTable = Table();

std::uint32_t ByTable(const unsigned char* bytes, int count, std::uint32_t state) {
  for (int i = 0; i < count; ++i) state = (state >> 8) ^ kTable[(state ^ bytes[i]) & 0xff];
  return state;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) std::uint32_t ByInstruction(const unsigned char* bytes, int count,
                                                              std::uint32_t state) {
  std::uint64_t wide = state;
  for (; count >= 8; count -= 8, bytes += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes, sizeof(word));
    wide = __builtin_ia32_crc32di(wide, word);
  }
  state = static_cast<std::uint32_t>(wide);
  for (; count > 0; --count, ++bytes) state = __builtin_ia32_crc32qi(state, *bytes);
  return state;
}
#endif

}  // namespace

// NOLINTNEXTLINE(readability-identifier-naming): ISA-L's name.
extern "C" unsigned int crc32_iscsi(unsigned char* buffer, int length, unsigned int init) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("sse4.2")) return ByInstruction(buffer, length, init);
#endif
  return ByTable(buffer, length, init);
}
