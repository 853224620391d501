// PTX, as far as XLA writes it for simple kernels: a program for one thread, run thread by thread, block after block.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "memory.h"

namespace model::ptx {

using Word = uint64_t;  // a register, whatever its type

// Memory that a kernel touches through one of its instructions: checked against what the driver has given out, and remembered.
class Touches {
 public:
  Touches(const std::string& kernel, size_t instructions) : kernel_(kernel), of_(instructions) {}
  // Whether that may be touched. If not, it is a violation, and nothing is.
  bool allow(size_t instruction, CUdeviceptr from, size_t bytes, bool write);
  void move_to(Accesses& accesses);

 private:
  struct Touch {
    CUdeviceptr low = 0, high = 0;  // the block that was touched last
    Range open{0, 0};               // grows as long as accesses are neighbours
    std::vector<Range> closed;
    bool write = false;
  };
  const std::string& kernel_;
  std::vector<Touch> of_;
};

enum class State { RUNNING, AT_BARRIER, AT_SHUFFLE, DONE };

struct Thread {
  std::vector<Word> registers;
  size_t at = 0;  // the next instruction
  State state = State::RUNNING;
  bool carry = false;
  std::vector<char> local;
  Touches* touches = nullptr;
};

using Instruction = std::function<void(Thread&)>;

struct Operand {
  int reg = -1;  // else `value`
  Word value = 0;
  bool negated = false;
  bool unknown = false;
  std::vector<Operand> parts;  // of {a, b, ...}
  Word get(const Thread& thread) const { return reg >= 0 ? thread.registers[static_cast<size_t>(reg)] : value; }
  Word& in(Thread& thread) const { return thread.registers[static_cast<size_t>(reg)]; }
};

// A warp's threads exchange values: done when all of them are there.
struct Shuffle {
  Operand to, valid, from, lane, limits;
  std::string mode;
};

struct Symbol {
  int reg;  // holds the address
  size_t offset, bytes;
};

struct Area {
  std::vector<Symbol> symbols;
  size_t bytes = 0;
};

struct Program {
  std::string name;
  std::string missing;  // the first thing in it that the model does not know: then it cannot be run
  std::vector<Instruction> instructions;
  std::map<std::string, int> registers;
  std::map<std::string, size_t> labels;
  std::map<std::string, std::vector<const size_t*>> targets;  // of branches that choose one of several labels
  Area parameters, local, shared;                             // a function's results come before its parameters
  std::map<size_t, Shuffle> shuffles;  // by instruction
  bool waits = false;                  // threads wait for each other
  size_t touching = 0;                 // instructions that touch global memory

  int reg(const std::string& name) { return registers.emplace(name, static_cast<int>(registers.size())).first->second; }
};

using Globals = std::map<std::string, std::pair<CUdeviceptr, size_t>>;

// A call of a function, which has a program of its own.
struct Function {
  std::shared_ptr<Program> program;
  std::vector<Operand> passed;              // addresses: of its results, then of its arguments
  size_t results = 0;                       // how many of them are results
  std::vector<std::pair<int, int>> places;  // registers that say where the thread is: in the function, and in its caller
};
void run(const Function& function, Thread& caller);

// Whether it is a register that says where a thread is.
bool is_place(const std::string& reg);

// Reads the kernel of that name in a module's text.
Program read(const std::string& text, const std::string& kernel, const Globals& globals);

// One line of a kernel; no instruction if the model does not know it. (ptx_instructions.cc)
Operand operand(Program& program, const Globals& globals, std::string text);
std::vector<std::string> split_operands(const std::string& text);
std::string trimmed(const std::string& text);
Instruction instruction(Program& program, const Globals& globals, const std::string& line);

struct Shape {
  unsigned grid[3], block[3], shared;
};
void run(const Program& program, const Shape& shape, std::vector<char> parameters, Accesses& accesses);

}  // namespace model::ptx
