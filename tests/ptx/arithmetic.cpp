#include "arithmetic.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <type_traits>
#include <unordered_map>
#include <utility>

#include "floats.h"

namespace ptx {
namespace {

// ---- Registers: a value is in the low bits of its slot

template <class T>
T get(uint64_t slot) {
  if constexpr (std::is_same_v<T, bool>) {
    return (slot & 1) != 0;
  } else {
    T value;
    std::memcpy(&value, &slot, sizeof value);
    return value;
  }
}
template <class T>
void put(uint64_t& slot, T value) {
  slot = 0;
  std::memcpy(&slot, &value, sizeof value);
}

// An operation is a function of values; several results are an array.
template <class R, class... Operands>
struct Signature {
  template <R (*f)(Operands...)>
  static const Instruction* step(Frame& frame, const Instruction* i) {
    const auto result = [&]<size_t... n>(std::index_sequence<n...>) {
      return f(get<Operands>(frame.slots[i->from[n]])...);
    }(std::index_sequence_for<Operands...>());
    if constexpr (requires { result.size(); })
      for (size_t n = 0; n < result.size(); ++n) put(frame.slots[i->to[n]], result[n]);
    else put(frame.slots[i->to[0]], result);
    return i + 1;
  }
};
template <class R>
inline constexpr int kResults = 1;
template <class T, size_t n>
inline constexpr int kResults<std::array<T, n>> = int(n);

template <auto f>
struct Of;
template <class R, class... Operands, R (*f)(Operands...)>
struct Of<f> {
  static Operation operation() {
    return {&Signature<R, Operands...>::template step<f>, kResults<R>, int(sizeof...(Operands))};
  }
};

// ---- Integers

template <class T>
using Unsigned = std::make_unsigned_t<T>;
template <class T>
inline constexpr uint32_t kBits = 8 * sizeof(T);
template <class T>
struct Twice;
template <>
struct Twice<int32_t> {
  using type = int64_t;
};
template <>
struct Twice<uint32_t> {
  using type = uint64_t;
};

template <class T>
T copy(T a) {
  return a;
}
template <class T>
T add(T a, T b) {
  return T(Unsigned<T>(a) + Unsigned<T>(b));
}
template <class T>
T sub(T a, T b) {
  return T(Unsigned<T>(a) - Unsigned<T>(b));
}
template <class T>
T neg(T a) {
  return T(0 - Unsigned<T>(a));
}
// In 64 bits: smaller types would be promoted to int, whose overflow is undefined.
template <class T>
T mul_lo(T a, T b) {
  return T(uint64_t(a) * uint64_t(b));
}
template <class T>
T mad_lo(T a, T b, T c) {
  return T(uint64_t(a) * uint64_t(b) + uint64_t(c));
}
template <class T>
typename Twice<T>::type mul_wide(T a, T b) {
  return typename Twice<T>::type(a) * b;
}
uint64_t mul_hi_u64(uint64_t a, uint64_t b) {
  return uint64_t(static_cast<unsigned __int128>(a) * b >> 64);
}
// Division by zero, and of the smallest number by -1, has no specified result; here it is one that
// is easily recognised.
template <class T>
bool divides(T a, T b) {
  return b != 0 && !(std::is_signed_v<T> && b == T(-1) && a == std::numeric_limits<T>::min());
}
template <class T>
T div(T a, T b) {
  return divides(a, b) ? T(a / b) : T(0xA5A5A5A5A5A5A5A5u);
}
template <class T>
T rem(T a, T b) {
  return divides(a, b) ? T(a % b) : T(0xA5A5A5A5A5A5A5A5u);
}
template <class T>
T min(T a, T b) {
  return a < b ? a : b;
}
template <class T>
T max(T a, T b) {
  return a > b ? a : b;
}
template <class T>
T bit_and(T a, T b) {
  return T(a & b);
}
template <class T>
T bit_or(T a, T b) {
  return T(a | b);
}
template <class T>
T bit_xor(T a, T b) {
  return T(a ^ b);
}
template <class T>
T bit_not(T a) {
  return T(~a);
}
bool not_pred(bool a) { return !a; }
// A shift by more than there are bits is one by all of them.
template <class T>
T shl(T a, uint32_t n) {
  return n < kBits<T> ? T(Unsigned<T>(a) << n) : T(0);
}
template <class T>
T shr(T a, uint32_t n) {
  return n < kBits<T> ? T(a >> n) : std::is_signed_v<T> && a < 0 ? T(-1) : T(0);
}
template <class T>
T select(T a, T b, bool p) {
  return p ? a : b;
}
template <class To, class From>
To convert(From a) {
  return To(a);
}

// To a register of 16 bits; see the decoder.
template <class To, class From>
int16_t convert_to_byte(From a) {
  return To(a);
}

template <class T>
bool eq(T a, T b) {
  return a == b;
}
template <class T>
bool ne(T a, T b) {
  return a != b;
}
template <class T>
bool lt(T a, T b) {
  return a < b;
}
template <class T>
bool le(T a, T b) {
  return a <= b;
}
template <class T>
bool gt(T a, T b) {
  return a > b;
}
template <class T>
bool ge(T a, T b) {
  return a >= b;
}
template <class T>
bool num(T a, T b) {
  return a == a && b == b;
}

template <class T>
T bfi(T field, T into, uint32_t first, uint32_t bits) {
  first &= 255, bits &= 255;
  if (first >= kBits<T> || bits == 0) return into;
  const T mask = T((bits >= kBits<T> ? ~T(0) : T((T(1) << bits) - 1)) << first);
  return T((into & ~mask) | (T(field << first) & mask));
}
template <class T>
T bfe(T a, uint32_t first, uint32_t bits) {
  first &= 255, bits &= 255;
  // Behind the field its last bit is repeated, or 0.
  const uint32_t last = std::min(first + bits - 1, kBits<T> - 1);
  T result = 0;
  for (uint32_t i = 0; i < kBits<T> && bits > 0; ++i) {
    const bool inside = i < bits && first + i < kBits<T>;
    if (inside || std::is_signed_v<T>)
      result = T(result | T((Unsigned<T>(a) >> (inside ? first + i : last) & 1) << i));
  }
  return result;
}
uint32_t shf_l_wrap(uint32_t low, uint32_t high, uint32_t n) {
  return uint32_t((uint64_t(high) << 32 | low) << (n & 31) >> 32);
}
uint32_t prmt(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t all = uint64_t(b) << 32 | a;
  uint32_t result = 0;
  for (uint32_t i = 0; i < 4; ++i) {
    const uint32_t choice = selector >> (4 * i) & 15;
    uint32_t byte = uint32_t(all >> (8 * (choice & 7))) & 255;
    if ((choice & 8) != 0) byte = (byte & 128) != 0 ? 255 : 0;
    result |= byte << (8 * i);
  }
  return result;
}
uint32_t lop3(uint32_t a, uint32_t b, uint32_t c, uint32_t table) {
  uint32_t result = 0;
  for (uint32_t i = 0; i < 32; ++i) {
    const uint32_t row = (a >> i & 1) << 2 | (b >> i & 1) << 1 | (c >> i & 1);
    result |= (table >> row & 1) << i;
  }
  return result;
}

// ---- Vectors of two

template <class Half, class Whole>
Whole join(Half low, Half high) {
  return Whole(high) << kBits<Half> | low;
}
template <class Half, class Whole>
std::array<Half, 2> split(Whole a) {
  return {Half(a), Half(a >> kBits<Half>)};
}

// ---- Floats

template <class T>
T add_float(T a, T b) {
  return canonical(a + b);
}
template <class T>
T sub_float(T a, T b) {
  return canonical(a - b);
}
template <class T>
T mul_float(T a, T b) {
  return canonical(a * b);
}
template <class T>
T div_float(T a, T b) {
  return canonical(a / b);
}
float sqrt_float(float a) { return canonical(std::sqrt(a)); }
float reciprocal(float a) { return canonical(1 / a); }
float f32_of_s32(int32_t a) { return float(a); }
float abs_float(float a) { return canonical(std::fabs(a)); }
float f32_of_f64(double a) { return canonical(float(a)); }

double sum(double a, double b) { return a + b; }
double product(double a, double b) { return a * b; }

// Two of them in a register. A sum or a product of two is rounded once: that of doubles is exact.
template <const Format& f, double (*operation)(double, double)>
uint32_t each_of_two(uint32_t a, uint32_t b) {
  uint32_t result = 0;
  for (int i = 0; i < 32; i += 16)
    result |= encode(f, operation(decode(f, a >> i & 0xFFFF), decode(f, b >> i & 0xFFFF))) << i;
  return result;
}
uint32_t fma_bf16x2(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t result = 0;
  const auto half = [](uint32_t x, int i) { return decode(kBF16, x >> i & 0xFFFF); };
  for (int i = 0; i < 32; i += 16)
    result |= encode(kBF16, fused(half(a, i), half(b, i), half(c, i))) << i;
  return result;
}
float f32_of_f16(uint16_t a) { return canonical(float(decode(kF16, a))); }
template <const Format& f>
uint16_t of_f32(float a) {
  return uint16_t(encode(f, a));
}
uint32_t f16x2_of_e4m3x2(uint16_t a) {
  return encode(kF16, decode(kE4M3, a & 0xFF)) | encode(kF16, decode(kE4M3, a >> 8)) << 16;
}
uint16_t e4m3x2_of_f16x2(uint32_t a) {
  return uint16_t(encode(kE4M3, decode(kF16, a & 0xFFFF), true) |
                  encode(kE4M3, decode(kF16, a >> 16), true) << 8);
}
// The first operand is the upper half.
template <const Format& f>
uint16_t two_of_f32(float a, float b) {
  return uint16_t(encode(f, a, true) << 8 | encode(f, b, true));
}

// ---- The table

using Table = std::unordered_map<std::string, Operation>;

// "add" and "s32", and the function.
#define RK_OP(name, ...) table[name] = Of<(__VA_ARGS__)>::operation()

template <class T>
void integers_of(Table& table, const std::string& s) {
  RK_OP("add." + s, &add<T>);
  RK_OP("sub." + s, &sub<T>);
  RK_OP("mul.lo." + s, &mul_lo<T>);
  RK_OP("mad.lo." + s, &mad_lo<T>);
  RK_OP("div." + s, &div<T>);
  RK_OP("rem." + s, &rem<T>);
  RK_OP("min." + s, &min<T>);
  RK_OP("max." + s, &max<T>);
  RK_OP("shr." + s, &shr<T>);
  if constexpr (std::is_signed_v<T>) RK_OP("neg." + s, &neg<T>);
  if constexpr (sizeof(T) == 4) RK_OP("mul.wide." + s, &mul_wide<T>);
}
template <class T>
void comparisons_of(Table& table, const std::string& s) {
  RK_OP("setp.eq." + s, &eq<T>);
  RK_OP("setp.ne." + s, &ne<T>);
  RK_OP("setp.lt." + s, &lt<T>);
  RK_OP("setp.le." + s, &le<T>);
  RK_OP("setp.gt." + s, &gt<T>);
  RK_OP("setp.ge." + s, &ge<T>);
}
template <class T>
void moves_of(Table& table, const std::string& s) {
  RK_OP("mov." + s, &copy<T>);
  RK_OP("selp." + s, &select<T>);
}
template <class T>
void bits_of(Table& table, const std::string& s) {
  RK_OP("and." + s, &bit_and<T>);
  RK_OP("or." + s, &bit_or<T>);
  RK_OP("xor." + s, &bit_xor<T>);
  RK_OP("not." + s, &bit_not<T>);
  RK_OP("shl." + s, &shl<T>);
}
template <class T>
void floats_of(Table& table, const std::string& s) {
  RK_OP("add.rn." + s, &add_float<T>);
  RK_OP("sub.rn." + s, &sub_float<T>);
  RK_OP("mul.rn." + s, &mul_float<T>);
  RK_OP("div.rn." + s, &div_float<T>);
  RK_OP("setp.num." + s, &num<T>);
}
template <class To, class... From>
void conversions_to(Table& table, const std::string& to, const char* const (&names)[8]) {
  int i = 0;
  ((RK_OP("cvt." + to + "." + names[i++], &convert<To, From>)), ...);
}

Table make_table() {
  Table table;
  const auto integer = [&]<class T>(T, const char* s) {
    integers_of<T>(table, s), comparisons_of<T>(table, s), moves_of<T>(table, s);
    constexpr const char* kNames[] = {"s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64"};
    conversions_to<T, int8_t, uint8_t, int16_t, uint16_t, int32_t, uint32_t, int64_t, uint64_t>(
        table, s, kNames);
  };
  integer(int16_t(), "s16"), integer(uint16_t(), "u16"), integer(int32_t(), "s32");
  integer(uint32_t(), "u32"), integer(int64_t(), "s64"), integer(uint64_t(), "u64");
  const auto to_byte = [&]<class T>(T, const std::string& s) {
    RK_OP("cvt.s8." + s, &convert_to_byte<int8_t, T>);
    RK_OP("cvt.u8." + s, &convert_to_byte<uint8_t, T>);
  };
  to_byte(int16_t(), "s16"), to_byte(uint16_t(), "u16"), to_byte(int32_t(), "s32");
  to_byte(uint32_t(), "u32"), to_byte(int64_t(), "s64"), to_byte(uint64_t(), "u64");
  const auto bits = [&]<class T>(T, const char* s) {
    bits_of<T>(table, s), moves_of<T>(table, s);
    RK_OP(std::string("setp.eq.") + s, &eq<T>);
    RK_OP(std::string("setp.ne.") + s, &ne<T>);
  };
  bits(uint16_t(), "b16"), bits(uint32_t(), "b32"), bits(uint64_t(), "b64");
  const auto floating = [&]<class T>(T, const char* s) {
    floats_of<T>(table, s), comparisons_of<T>(table, s), moves_of<T>(table, s);
  };
  floating(float(), "f32"), floating(double(), "f64");

  RK_OP("mov.pred", &copy<bool>);
  RK_OP("not.pred", &not_pred);
  RK_OP("and.pred", &bit_and<bool>);
  RK_OP("or.pred", &bit_or<bool>);
  RK_OP("xor.pred", &bit_xor<bool>);
  RK_OP("mul.hi.u64", &mul_hi_u64);
  RK_OP("bfi.b32", &bfi<uint32_t>);
  RK_OP("bfi.b64", &bfi<uint64_t>);
  RK_OP("bfe.s64", &bfe<int64_t>);
  RK_OP("bfe.u64", &bfe<uint64_t>);
  RK_OP("bfe.s32", &bfe<int32_t>);
  RK_OP("bfe.u32", &bfe<uint32_t>);
  RK_OP("shf.l.wrap.b32", &shf_l_wrap);
  RK_OP("prmt.b32", &prmt);
  RK_OP("lop3.b32", &lop3);
  // All memory that a kernel is given is global: so is its generic address.
  RK_OP("cvta.to.global.u64", &copy<uint64_t>);
  // With a vector on one side; the decoder looks at the operands.
  RK_OP("join.b32", &join<uint16_t, uint32_t>);
  RK_OP("join.b64", &join<uint32_t, uint64_t>);
  RK_OP("split.b32", &split<uint16_t, uint32_t>);
  RK_OP("split.b64", &split<uint32_t, uint64_t>);

  RK_OP("abs.f32", &abs_float);
  RK_OP("sqrt.rn.f32", &sqrt_float);
  RK_OP("rcp.rn.f32", &reciprocal);
  RK_OP("cvt.rn.f32.s32", &f32_of_s32);
  RK_OP("cvt.rn.f32.f64", &f32_of_f64);
  RK_OP("cvt.f32.f16", &f32_of_f16);
  RK_OP("cvt.rn.f16.f32", &of_f32<kF16>);
  RK_OP("cvt.rn.bf16.f32", &of_f32<kBF16>);
  RK_OP("add.rn.f16x2", &each_of_two<kF16, sum>);
  RK_OP("mul.rn.f16x2", &each_of_two<kF16, product>);
  RK_OP("min.NaN.f16x2", &each_of_two<kF16, smaller>);
  RK_OP("max.NaN.f16x2", &each_of_two<kF16, larger>);
  RK_OP("add.rn.bf16x2", &each_of_two<kBF16, sum>);
  RK_OP("mul.rn.bf16x2", &each_of_two<kBF16, product>);
  RK_OP("min.NaN.bf16x2", &each_of_two<kBF16, smaller>);
  RK_OP("max.NaN.bf16x2", &each_of_two<kBF16, larger>);
  RK_OP("fma.rn.bf16x2", &fma_bf16x2);
  RK_OP("cvt.rn.f16x2.e4m3x2", &f16x2_of_e4m3x2);
  RK_OP("cvt.rn.satfinite.e4m3x2.f16x2", &e4m3x2_of_f16x2);
  RK_OP("cvt.rn.satfinite.e4m3x2.f32", &two_of_f32<kE4M3>);
  RK_OP("cvt.rn.satfinite.e5m2x2.f32", &two_of_f32<kE5M2>);
  return table;
}
#undef RK_OP

}  // namespace

Operation operation_of(const std::string& opcode) {
  static const Table table = make_table();
  const auto found = table.find(opcode);
  return found == table.end() ? Operation() : found->second;
}

}  // namespace ptx
