// What each PTX instruction does to a thread.
#include <algorithm>
#include <cfenv>
#include <cmath>
#include <cstring>
#include <limits>
#include <sstream>
#include <type_traits>

#include "ptx.h"

namespace model::ptx {
namespace {

template <class T>
T as(Word word) {
  T value;
  memcpy(&value, &word, sizeof value);
  return value;
}
template <class T>
Word raw(T value) {
  Word word = 0;
  memcpy(&word, &value, sizeof value);
  return word;
}

size_t bytes_of(const std::string& type) {
  return type == "pred" ? 1 : strtoull(type.c_str() + std::min(type.size(), type.find_first_of("0123456789")), nullptr, 10) / 8;
}
Word mask_of(const std::string& type) {
  size_t bits = type == "pred" ? 1 : bytes_of(type) * 8;
  return bits >= 64 ? ~Word(0) : (Word(1) << bits) - 1;
}

// A number of 16 bits: computed with as a float, and rounded to the nearest.
struct Half {
  _Float16 value;
  Half() = default;
  explicit Half(float x) : value(static_cast<_Float16>(x)) {}
  operator float() const { return static_cast<float>(value); }
};
struct Brain {  // bfloat16
  uint16_t bits;
  Brain() = default;
  explicit Brain(float x) {
    uint32_t word;
    memcpy(&word, &x, sizeof word);
    bits = static_cast<uint16_t>(x != x ? word >> 16 | 64 : (word + 0x7fff + (word >> 16 & 1)) >> 16);
  }
  operator float() const {
    uint32_t word = static_cast<uint32_t>(bits) << 16;
    float x;
    memcpy(&x, &word, sizeof x);
    return x;
  }
};
template <class T>
constexpr bool is_real = std::is_floating_point_v<T> || std::is_same_v<T, Half> || std::is_same_v<T, Brain>;

// Calls `with` with a value of the C++ type that a PTX type is; false if it is of another kind.
template <class With>
bool integer(const std::string& type, With with) {
  if (type == "u8" || type == "b8") return with(uint8_t()), true;
  if (type == "s8") return with(int8_t()), true;
  if (type == "u16" || type == "b16") return with(uint16_t()), true;
  if (type == "s16") return with(int16_t()), true;
  if (type == "u32" || type == "b32") return with(uint32_t()), true;
  if (type == "s32") return with(int32_t()), true;
  if (type == "u64" || type == "b64") return with(uint64_t()), true;
  if (type == "s64") return with(int64_t()), true;
  return false;
}
template <class With>
bool real(const std::string& type, With with) {
  if (type == "f32") return with(float()), true;
  if (type == "f64") return with(double()), true;
  if (type == "f16") return with(Half()), true;
  if (type == "bf16") return with(Brain()), true;
  return false;
}
template <class With>
bool any(const std::string& type, With with) {
  return integer(type, with) || real(type, with);
}

template <class T>
bool compare(const std::string& how, T a, T b) {
  bool nan = a != a || b != b;
  if (how == "eq") return !nan && a == b;
  if (how == "ne") return !nan && a != b;
  if (how == "lt" || how == "lo") return a < b;
  if (how == "le" || how == "ls") return a <= b;
  if (how == "gt" || how == "hi") return a > b;
  if (how == "ge" || how == "hs") return a >= b;
  if (how == "equ") return nan || a == b;
  if (how == "neu") return nan || a != b;
  if (how == "ltu") return nan || a < b;
  if (how == "leu") return nan || a <= b;
  if (how == "gtu") return nan || a > b;
  if (how == "geu") return nan || a >= b;
  return how == "num" ? !nan : nan;
}

double rounded(double x, const std::string& how) {
  if (how == "rni") return std::nearbyint(x);
  if (how == "rzi") return std::trunc(x);
  if (how == "rmi") return std::floor(x);
  if (how == "rpi") return std::ceil(x);
  return x;
}

template <class To, class From>
Word convert(From value, const std::string& how) {
  if constexpr (is_real<From> && std::is_integral_v<To>) {  // out of range: the nearest there is
    double x = rounded(value, how);
    if (x != x) return 0;
    if (x <= static_cast<double>(std::numeric_limits<To>::min())) return raw(std::numeric_limits<To>::min());
    if (x >= static_cast<double>(std::numeric_limits<To>::max())) return raw(std::numeric_limits<To>::max());
    return raw(static_cast<To>(x));
  } else if constexpr (is_real<From>) {
    return raw(static_cast<To>(rounded(value, how)));
  } else {
    return raw(static_cast<To>(value));
  }
}

// One line, taken apart: "@!%p1 add.rn.f32 %f1, %f2, %f3".
struct Line {
  Program& program;
  const Globals& globals;
  std::string op;
  std::vector<std::string> modifiers, types, operands;
  Operand guard;
  bool guarded = false;

  Line(Program& program, const Globals& globals, std::string text) : program(program), globals(globals) {
    if (text[0] == '@') {
      auto end = text.find_first_of(" \t");
      guard = operand(program, globals, text.substr(1, end - 1));
      guarded = true;
      text = trimmed(text.substr(end));
    }
    auto end = text.find_first_of(" \t");
    std::istringstream code(text.substr(0, end));
    std::getline(code, op, '.');
    for (std::string each; std::getline(code, each, '.');) {
      modifiers.push_back(each);
      bool is_type = each == "pred" || each == "bf16" || ((each.size() == 2 || each.size() == 3) && strchr("usbf", each[0]) && isdigit(each[1]));
      if (is_type) types.push_back(each);
    }
    if (end != std::string::npos) operands = split_operands(text.substr(end));
  }

  bool has(const char* modifier) const { return std::find(modifiers.begin(), modifiers.end(), modifier) != modifiers.end(); }
  std::string one_of(std::initializer_list<const char*> choices) const {
    for (const char* choice : choices)
      if (has(choice)) return choice;
    return "";
  }
  std::string type() const { return types.empty() ? "" : types.back(); }
  Operand at(size_t index) const { return operand(program, globals, operands.at(index)); }
  // "[%rd1+16]"
  std::pair<Operand, Word> address(size_t index) const {
    std::string inside = operands.at(index);
    inside = inside.substr(inside.find('[') + 1);
    inside = inside.substr(0, inside.find(']'));
    auto plus = inside.find('+', 1);
    Word offset = plus == std::string::npos ? 0 : static_cast<Word>(strtoll(inside.c_str() + plus + 1, nullptr, 0));
    return {operand(program, globals, inside.substr(0, plus)), offset};
  }
};

// ----------------------------------------------------------------------------------------------------------------- memory
// Whether addresses of that instruction are the driver's business. (There is "param" and "param::entry".)
bool is_global(const Line& line) {
  for (const std::string& each : line.modifiers)
    for (const char* space : {"param", "shared", "local", "const"})
      if (each.rfind(space, 0) == 0) return false;
  return true;
}

std::vector<Operand> parts_of(const Operand& operand) { return operand.parts.empty() ? std::vector<Operand>{operand} : operand.parts; }

Instruction load(const Line& line) {
  size_t width = bytes_of(line.type());
  auto [base, offset] = line.address(1);
  if (base.unknown) return nullptr;
  auto to = parts_of(line.at(0));
  bool is_signed = line.type()[0] == 's', global = is_global(line);
  size_t touch = global ? line.program.touching++ : 0;
  return [=](Thread& thread) {
    CUdeviceptr at = base.get(thread) + offset;
    if (global && !thread.touches->allow(touch, at, width * to.size(), false)) return;
    for (size_t i = 0; i < to.size(); i++) {
      Word word = 0;
      memcpy(&word, reinterpret_cast<const char*>(at) + i * width, width);
      if (is_signed && width < 8 && word >> (8 * width - 1)) word |= ~Word(0) << (8 * width);
      to[i].in(thread) = word;
    }
  };
}

Instruction store(const Line& line) {
  size_t width = bytes_of(line.type());
  auto [base, offset] = line.address(0);
  if (base.unknown) return nullptr;
  auto from = parts_of(line.at(1));
  bool global = is_global(line);
  size_t touch = global ? line.program.touching++ : 0;
  return [=](Thread& thread) {
    CUdeviceptr at = base.get(thread) + offset;
    if (global && !thread.touches->allow(touch, at, width * from.size(), true)) return;
    for (size_t i = 0; i < from.size(); i++) {
      Word word = from[i].get(thread);
      memcpy(reinterpret_cast<char*>(at) + i * width, &word, width);
    }
  };
}

// atom gives the old value, red does not. One thread runs at a time, so nothing more is needed.
Instruction atomic(const Line& line) {
  bool gives = line.op == "atom";
  auto [base, offset] = line.address(gives ? 1 : 0);
  if (base.unknown) return nullptr;
  std::string how = line.one_of({"add", "min", "max", "and", "or", "xor", "exch", "cas"});
  Operand to = gives ? line.at(0) : Operand{}, value = line.at(gives ? 2 : 1), other = how == "cas" ? line.at(3) : Operand{};
  bool global = is_global(line);
  size_t touch = global ? line.program.touching++ : 0;
  Instruction done;
  any(line.type(), [&](auto zero) {
    using T = decltype(zero);
    done = [=](Thread& thread) {
      CUdeviceptr at = base.get(thread) + offset;
      if (global && !thread.touches->allow(touch, at, sizeof(T), true)) return;
      T old, operand = as<T>(value.get(thread)), now = operand;
      memcpy(&old, reinterpret_cast<void*>(at), sizeof old);
      if (how == "add") now = static_cast<T>(old + operand);
      if (how == "min") now = std::min(old, operand);
      if (how == "max") now = std::max(old, operand);
      if (how == "cas") now = old == operand ? as<T>(other.get(thread)) : old;
      if constexpr (std::is_integral_v<T>) {
        if (how == "and") now = static_cast<T>(old & operand);
        if (how == "or") now = static_cast<T>(old | operand);
        if (how == "xor") now = static_cast<T>(old ^ operand);
      }
      memcpy(reinterpret_cast<void*>(at), &now, sizeof now);
      if (gives) to.in(thread) = raw(old);
    };
  });
  return how.empty() ? nullptr : done;
}

// ------------------------------------------------------------------------------------------------------------------ moves
Instruction move(const Line& line) {
  Operand to = line.at(0), from = line.at(1);
  size_t bits = bytes_of(line.type()) * 8;
  if (from.unknown) return nullptr;
  auto mask = [](size_t width) { return width >= 64 ? ~Word(0) : (Word(1) << width) - 1; };
  if (!to.parts.empty()) {
    size_t width = bits / to.parts.size();
    return [=](Thread& thread) {
      Word word = from.get(thread);
      for (size_t i = 0; i < to.parts.size(); i++) to.parts[i].in(thread) = word >> (i * width) & mask(width);
    };
  }
  if (!from.parts.empty()) {
    size_t width = bits / from.parts.size();
    return [=](Thread& thread) {
      Word word = 0;
      for (size_t i = 0; i < from.parts.size(); i++) word |= (from.parts[i].get(thread) & mask(width)) << (i * width);
      to.in(thread) = word;
    };
  }
  return [=](Thread& thread) { to.in(thread) = from.get(thread); };
}

Instruction convert(const Line& line) {
  if (line.types.size() != 2) return nullptr;
  Operand to = line.at(0), from = line.at(1);
  std::string how = line.one_of({"rni", "rzi", "rmi", "rpi"});
  if (line.has("sat")) {
    if (line.types[0] != "f32" || line.types[1] != "f32") return nullptr;
    return [=](Thread& thread) {
      float x = as<float>(from.get(thread));
      to.in(thread) = raw(x > 1 ? 1.f : x > 0 ? x : 0.f);
    };
  }
  Instruction done;
  any(line.types[0], [&](auto t) {
    any(line.types[1], [&](auto f) {
      using To = decltype(t);
      using From = decltype(f);
      done = [=](Thread& thread) {
        Word word = ptx::convert<To, From>(as<From>(from.get(thread)), how);
        if constexpr (std::is_signed_v<To> && std::is_integral_v<To>) word = static_cast<Word>(static_cast<int64_t>(as<To>(word)));
        to.in(thread) = word;
      };
    });
  });
  return done;
}

// ------------------------------------------------------------------------------------------------------------- arithmetic
template <class Kind, class F>
Instruction unary(const Line& line, Kind kind, F f) {
  Instruction done;
  Operand to = line.at(0), a = line.at(1);
  kind(line.type(), [&](auto zero) {
    using T = decltype(zero);
    done = [=](Thread& thread) { to.in(thread) = raw(static_cast<T>(f(as<T>(a.get(thread))))); };
  });
  return done;
}
template <class Kind, class F>
Instruction binary(const Line& line, Kind kind, F f) {
  Instruction done;
  Operand to = line.at(0), a = line.at(1), b = line.at(2);
  kind(line.type(), [&](auto zero) {
    using T = decltype(zero);
    done = [=](Thread& thread) { to.in(thread) = raw(static_cast<T>(f(as<T>(a.get(thread)), as<T>(b.get(thread))))); };
  });
  return done;
}
const auto INTEGER = [](const std::string& type, auto with) { return integer(type, with); };
const auto REAL = [](const std::string& type, auto with) { return real(type, with); };
const auto ANY = [](const std::string& type, auto with) { return any(type, with); };

// The product in twice the width, and a third operand added to it if there is one.
Instruction wide_product(const Line& line) {
  Operand to = line.at(0), a = line.at(1), b = line.at(2), c = line.op == "mad" ? line.at(3) : Operand{};
  std::string wide = line.type().substr(0, 1) + std::to_string(bytes_of(line.type()) * 16);
  Instruction done;
  integer(line.type(), [&](auto narrow) {
    integer(wide, [&](auto twice) {
      using T = decltype(narrow);
      using W = decltype(twice);
      done = [=](Thread& thread) { to.in(thread) = raw(static_cast<W>(static_cast<W>(as<T>(a.get(thread))) * static_cast<W>(as<T>(b.get(thread))) + as<W>(c.get(thread)))); };
    });
  });
  return done;
}

Instruction high_product(const Line& line) {
  return binary(line, INTEGER, [](auto a, auto b) { return static_cast<decltype(a)>((static_cast<__int128>(a) * static_cast<__int128>(b)) >> (8 * sizeof a)); });
}

// mad and madc: a product, a sum, and the carry that goes from one to the next.
Instruction multiply_add(const Line& line) {
  if (line.has("wide")) return wide_product(line);
  Operand to = line.at(0), a = line.at(1), b = line.at(2), c = line.at(3);
  bool carries_out = line.has("cc"), carries_in = line.op == "madc", high = line.has("hi");
  Instruction done;
  integer(line.type(), [&](auto zero) {
    using T = decltype(zero);
    using U = std::make_unsigned_t<T>;
    done = [=](Thread& thread) {
      __int128 product = static_cast<__int128>(as<T>(a.get(thread))) * as<T>(b.get(thread));
      U part = static_cast<U>(high ? product >> (8 * sizeof(T)) : product);
      unsigned __int128 sum = static_cast<unsigned __int128>(part) + as<U>(c.get(thread)) + (carries_in && thread.carry);
      if (carries_out) thread.carry = (sum >> (8 * sizeof(T))) != 0;
      to.in(thread) = raw(static_cast<U>(sum));
    };
  });
  return done;
}

Instruction fused_multiply_add(const Line& line) {
  Operand to = line.at(0), a = line.at(1), b = line.at(2), c = line.at(3);
  Instruction done;
  real(line.type(), [&](auto zero) {
    using T = decltype(zero);
    done = [=](Thread& thread) { to.in(thread) = raw(static_cast<T>(std::fma(as<T>(a.get(thread)), as<T>(b.get(thread)), as<T>(c.get(thread))))); };
  });
  return done;
}

Instruction extreme(const Line& line) {
  bool greatest = line.op == "max", keeps_nan = line.has("NaN");
  if (auto done = binary(line, REAL, [=](auto a, auto b) {
        using T = decltype(a);
        if (keeps_nan && (a != a || b != b)) return static_cast<T>(std::numeric_limits<float>::quiet_NaN());
        return static_cast<T>(greatest ? std::fmax(a, b) : std::fmin(a, b));
      }))
    return done;
  return binary(line, INTEGER, [=](auto a, auto b) { return greatest == (a > b) ? a : b; });
}

// ------------------------------------------------------------------------------------------------------------------- bits
Instruction logic(const Line& line) {
  Operand to = line.at(0), a = line.at(1), b = line.at(2);
  Word mask = mask_of(line.type());
  char how = line.op[0];
  return [=](Thread& thread) {
    Word x = a.get(thread), y = b.get(thread);
    to.in(thread) = (how == 'a' ? x & y : how == 'o' ? x | y : x ^ y) & mask;
  };
}

Instruction shift(const Line& line) {
  Operand to = line.at(0), a = line.at(1), b = line.at(2);
  bool left = line.op == "shl";
  Instruction done;
  integer(line.type(), [&](auto zero) {
    using T = decltype(zero);
    constexpr uint32_t bits = 8 * sizeof(T);
    done = [=](Thread& thread) {
      T x = as<T>(a.get(thread));
      uint32_t by = as<uint32_t>(b.get(thread));
      T all_out = !left && std::is_signed_v<T> && x < T(0) ? T(-1) : T(0);
      to.in(thread) = raw(by >= bits ? all_out : static_cast<T>(left ? x << by : x >> by));
    };
  });
  return done;
}

Instruction funnel_shift(const Line& line) {
  Operand to = line.at(0), low = line.at(1), high = line.at(2), by = line.at(3);
  bool left = line.has("l"), wraps = line.has("wrap");
  return [=](Thread& thread) {
    uint64_t both = (high.get(thread) & 0xffffffff) << 32 | (low.get(thread) & 0xffffffff);
    uint32_t n = as<uint32_t>(by.get(thread));
    n = wraps ? n & 31 : std::min(n, 32u);
    to.in(thread) = static_cast<uint32_t>(left ? both << n >> 32 : both >> n);
  };
}

Instruction permute_bytes(const Line& line) {
  Operand to = line.at(0), low = line.at(1), high = line.at(2), which = line.at(3);
  return [=](Thread& thread) {
    uint64_t both = (high.get(thread) & 0xffffffff) << 32 | (low.get(thread) & 0xffffffff);
    uint32_t result = 0;
    for (int i = 0; i < 4; i++) {
      uint32_t select = static_cast<uint32_t>(which.get(thread)) >> (4 * i);
      uint8_t byte = static_cast<uint8_t>(both >> (8 * (select & 7)));
      if (select & 8) byte = byte & 128 ? 255 : 0;
      result |= static_cast<uint32_t>(byte) << (8 * i);
    }
    to.in(thread) = result;
  };
}

// ---------------------------------------------------------------------------------------------------------------- control
Instruction set_predicate(const Line& line) {
  Operand to = line.at(0), a = line.at(1), b = line.at(2);
  std::string how = line.modifiers.at(0), join = line.one_of({"and", "or", "xor"});
  Operand with = join.empty() ? Operand{} : line.at(3);
  Instruction done;
  any(line.type(), [&](auto zero) {
    using T = decltype(zero);
    done = [=](Thread& thread) {
      bool value = compare<T>(how, as<T>(a.get(thread)), as<T>(b.get(thread)));
      bool other = with.get(thread) ^ static_cast<Word>(with.negated);
      if (join == "and") value = value && other;
      if (join == "or") value = value || other;
      if (join == "xor") value = value != other;
      to.in(thread) = value;
    };
  });
  return done;
}

Instruction select(const Line& line) {
  Operand to = line.at(0), a = line.at(1), b = line.at(2), which = line.at(3);
  return [=](Thread& thread) { to.in(thread) = (which.get(thread) ? a : b).get(thread); };
}

Instruction branch(const Line& line) {
  const size_t* target = &line.program.labels[trimmed(line.operands.at(0))];
  return [=](Thread& thread) { thread.at = *target; };
}

Instruction branch_to_one_of(const Line& line) {
  Operand which = line.at(0);
  const auto* targets = &line.program.targets[trimmed(line.operands.at(1))];
  return [=](Thread& thread) { thread.at = *targets->at(as<uint32_t>(which.get(thread))); };
}

Instruction shuffle(const Line& line) {
  Program& program = line.program;
  program.waits = true;
  std::string targets = line.operands.at(0);
  auto bar = targets.find('|');
  Shuffle shuffle{operand(program, line.globals, targets.substr(0, bar)), {}, line.at(1), line.at(2), line.at(3), line.one_of({"bfly", "down", "up", "idx"})};
  if (bar != std::string::npos) shuffle.valid = operand(program, line.globals, targets.substr(bar + 1));
  program.shuffles[program.instructions.size()] = shuffle;
  return [](Thread& thread) { thread.state = State::AT_SHUFFLE; };
}

Instruction unguarded(const Line& line) {
  const std::string& op = line.op;
  auto is = [&](auto... names) { return ((op == names) || ...); };
  if (is("ret", "exit")) return [](Thread& thread) { thread.state = State::DONE; };
  if (is("griddepcontrol", "membar", "fence", "prefetch", "nanosleep")) return [](Thread&) {};
  if (is("bra")) return branch(line);
  if (is("brx")) return branch_to_one_of(line);
  if (is("bar", "barrier")) {
    line.program.waits = true;
    return [](Thread& thread) { thread.state = State::AT_BARRIER; };
  }
  if (is("shfl")) return shuffle(line);
  if (is("ld")) return load(line);
  if (is("st")) return store(line);
  if (is("atom", "red")) return atomic(line);
  if (is("mov", "cvta")) return move(line);
  if (is("cvt")) return convert(line);
  if (is("setp")) return set_predicate(line);
  if (is("selp")) return select(line);
  if (is("add", "sub")) {
    if (line.has("cc")) return nullptr;
    return op == "add" ? binary(line, ANY, [](auto a, auto b) { return a + b; }) : binary(line, ANY, [](auto a, auto b) { return a - b; });
  }
  if (is("mul")) return line.has("wide") ? wide_product(line) : line.has("hi") ? high_product(line) : binary(line, ANY, [](auto a, auto b) { return a * b; });
  if (is("mad", "madc")) return multiply_add(line);
  if (is("fma")) return fused_multiply_add(line);
  if (is("div")) {
    if (auto done = binary(line, REAL, [](auto a, auto b) { return a / b; })) return done;
    return binary(line, INTEGER, [](auto a, auto b) { return b ? a / b : decltype(a)(-1); });
  }
  if (is("rem")) return binary(line, INTEGER, [](auto a, auto b) { return b ? a % b : a; });
  if (is("min", "max")) return extreme(line);
  if (is("neg")) return unary(line, ANY, [](auto a) { return -a; });
  if (is("abs")) {
    if (auto done = unary(line, REAL, [](auto a) { return std::fabs(a); })) return done;
    return unary(line, INTEGER, [](auto a) { return a < decltype(a)(0) ? -a : a; });
  }
  if (is("not")) {
    if (line.type() == "pred") return [to = line.at(0), a = line.at(1)](Thread& thread) { to.in(thread) = !a.get(thread); };
    return unary(line, INTEGER, [](auto a) { return ~a; });
  }
  if (is("and", "or", "xor")) return logic(line);
  if (is("shl", "shr")) return shift(line);
  if (is("shf")) return funnel_shift(line);
  if (is("prmt")) return permute_bytes(line);
  if (is("clz")) return [to = line.at(0), a = line.at(1)](Thread& thread) {
    uint32_t x = static_cast<uint32_t>(a.get(thread));
    to.in(thread) = x ? static_cast<Word>(__builtin_clz(x)) : 32;
  };
  if (is("popc")) return unary(line, INTEGER, [](auto a) { return __builtin_popcountll(static_cast<std::make_unsigned_t<decltype(a)>>(a)); });
  if (is("copysign")) return binary(line, REAL, [](auto a, auto b) { return std::copysign(b, a); });
  if (is("sqrt")) return unary(line, REAL, [](auto a) { return std::sqrt(a); });
  if (is("rsqrt")) return unary(line, REAL, [](auto a) { return 1 / std::sqrt(a); });
  if (is("rcp")) return unary(line, REAL, [](auto a) { return 1 / a; });
  if (is("ex2")) return unary(line, REAL, [](auto a) { return std::exp2(a); });
  if (is("lg2")) return unary(line, REAL, [](auto a) { return std::log2(a); });
  if (is("sin")) return unary(line, REAL, [](auto a) { return std::sin(a); });
  if (is("cos")) return unary(line, REAL, [](auto a) { return std::cos(a); });
  if (is("tanh")) return unary(line, REAL, [](auto a) { return std::tanh(a); });
  return nullptr;
}

}  // namespace

std::string trimmed(const std::string& text) {
  auto from = text.find_first_not_of(" \t\r\n"), to = text.find_last_not_of(" \t\r\n");
  return from == std::string::npos ? "" : text.substr(from, to - from + 1);
}

std::vector<std::string> split_operands(const std::string& text) {
  std::vector<std::string> found;
  std::string now;
  int depth = 0;
  for (char c : text) {
    if (c == '[' || c == '{' || c == '(') depth++;
    if (c == ']' || c == '}' || c == ')') depth--;
    if (c == ',' && !depth) {
      found.push_back(trimmed(now));
      now.clear();
    } else {
      now += c;
    }
  }
  if (!trimmed(now).empty()) found.push_back(trimmed(now));
  return found;
}

Operand operand(Program& program, const Globals& globals, std::string text) {
  text = trimmed(text);
  Operand found;
  if (text[0] == '!') {
    found = operand(program, globals, text.substr(1));
    found.negated = true;
  } else if (text[0] == '{') {
    for (auto& part : split_operands(text.substr(1, text.size() - 2))) found.parts.push_back(operand(program, globals, part));
  } else if (text[0] == '%' || program.registers.count(text)) {
    found.reg = program.reg(text);
  } else if (text == "_") {
    found.reg = program.reg("_");  // a result that is not wanted
  } else if (text.rfind("0f", 0) == 0 || text.rfind("0F", 0) == 0 || text.rfind("0d", 0) == 0 || text.rfind("0D", 0) == 0) {
    found.value = strtoull(text.c_str() + 2, nullptr, 16);
  } else if (text[0] == '-') {
    found.value = static_cast<Word>(strtoll(text.c_str(), nullptr, 0));
  } else if (isdigit(text[0])) {
    found.value = strtoull(text.c_str(), nullptr, 0);
  } else if (auto global = globals.find(text); global != globals.end()) {
    found.value = global->second.first;
  } else {
    found.unknown = true;
  }
  return found;
}

Instruction instruction(Program& program, const Globals& globals, const std::string& text) {
  Line line(program, globals, text);
  Instruction inner = unguarded(line);
  if (!inner || !line.guarded) return inner;
  return [inner, guard = line.guard](Thread& thread) {
    if ((guard.get(thread) != 0) != guard.negated) inner(thread);
  };
}

}  // namespace model::ptx
