// Runs a kernel: block after block, thread after thread; at barriers and shuffles the threads of a block take turns.
#include <algorithm>
#include <cstring>
#include <iterator>
#include <string>

#include "model.h"
#include "ptx.h"

namespace model::ptx {
namespace {

constexpr unsigned WARP = 32;
const char* const PLACES[] = {"%tid", "%ctaid", "%ntid", "%nctaid"};

char* aligned(std::vector<char>& memory, size_t align) {
  auto at = reinterpret_cast<uintptr_t>(memory.data());
  return reinterpret_cast<char*>((at + align - 1) / align * align);
}

// Registers that say where a thread is.
class Places {
 public:
  explicit Places(const Program& program) {
    const char* axes[] = {".x", ".y", ".z"};
    for (int i = 0; i < 3; i++) {
      thread_[i] = find(program, PLACES[0] + std::string(axes[i]));
      block_[i] = find(program, PLACES[1] + std::string(axes[i]));
      threads_[i] = find(program, PLACES[2] + std::string(axes[i]));
      blocks_[i] = find(program, PLACES[3] + std::string(axes[i]));
    }
    lane_ = find(program, "%laneid");
  }

  void put(std::vector<Word>& registers, const Shape& shape, unsigned number, const unsigned* block) const {
    unsigned thread[] = {number % shape.block[0], number / shape.block[0] % shape.block[1], number / (shape.block[0] * shape.block[1])};
    for (int i = 0; i < 3; i++) {
      set(registers, thread_[i], thread[i]);
      set(registers, block_[i], block[i]);
      set(registers, threads_[i], shape.block[i]);
      set(registers, blocks_[i], shape.grid[i]);
    }
    set(registers, lane_, number % WARP);
  }

 private:
  static int find(const Program& program, const std::string& name) {
    auto at = program.registers.find(name);
    return at == program.registers.end() ? -1 : at->second;
  }
  static void set(std::vector<Word>& registers, int reg, unsigned value) {
    if (reg >= 0) registers[static_cast<size_t>(reg)] = value;
  }
  int thread_[3], block_[3], threads_[3], blocks_[3], lane_;
};

// Makes the registers of its symbols point to memory.
void point(Thread& thread, const Area& area, char* memory) {
  for (const Symbol& symbol : area.symbols) thread.registers[static_cast<size_t>(symbol.reg)] = reinterpret_cast<Word>(memory + symbol.offset);
}

void run_until_it_waits(Thread& thread, const Program& program) {
  while (thread.state == State::RUNNING && thread.at < program.instructions.size()) program.instructions[thread.at++](thread);
  if (thread.state == State::RUNNING) thread.state = State::DONE;
}

void shuffle(const std::vector<Thread*>& warp, const Program& program) {
  auto found = program.shuffles.find(warp[0]->at - 1);
  const Shuffle& how = found->second;
  std::vector<Word> values;
  for (Thread* thread : warp) values.push_back(how.from.get(*thread));
  for (int lane = 0; lane < static_cast<int>(warp.size()); lane++) {
    Thread& thread = *warp[static_cast<size_t>(lane)];
    int by = static_cast<int>(how.lane.get(thread)), limits = static_cast<int>(how.limits.get(thread));
    int segment = limits >> 8 & 31, clamp = limits & 31, lowest = lane & segment, highest = lowest | (clamp & ~segment);
    int from;
    bool valid;
    if (how.mode == "up") {
      from = lane - by;
      valid = from >= highest;
    } else {
      from = how.mode == "down" ? lane + by : how.mode == "bfly" ? lane ^ by : lowest | (by & ~segment);
      valid = from <= highest;
    }
    if (!valid) from = lane;
    how.to.in(thread) = from < static_cast<int>(values.size()) ? values[static_cast<size_t>(from)] : 0;
    if (how.valid.reg >= 0) how.valid.in(thread) = valid;
    thread.state = State::RUNNING;
  }
}

// Lets each warp go on whose threads are all at a shuffle.
bool shuffle_warps(std::vector<Thread>& threads, const Program& program) {
  bool any = false;
  for (size_t first = 0; first < threads.size(); first += WARP) {
    std::vector<Thread*> there;
    size_t alive = 0;
    for (size_t i = first; i < std::min(threads.size(), first + WARP); i++) {
      alive += threads[i].state != State::DONE;
      if (threads[i].state == State::AT_SHUFFLE) there.push_back(&threads[i]);
    }
    if (there.empty() || there.size() < alive) continue;
    shuffle(there, program);
    any = true;
  }
  return any;
}

void run_together(std::vector<Thread>& threads, const Program& program) {
  for (;;) {
    for (Thread& thread : threads) run_until_it_waits(thread, program);
    if (shuffle_warps(threads, program)) continue;
    size_t alive = 0, at_barrier = 0;
    for (Thread& thread : threads) {
      alive += thread.state != State::DONE;
      at_barrier += thread.state == State::AT_BARRIER;
    }
    if (!alive) return;
    if (at_barrier < alive) {
      violation("kernel %s: its threads wait for each other", program.name.c_str());
      return;
    }
    for (Thread& thread : threads)
      if (thread.state == State::AT_BARRIER) thread.state = State::RUNNING;
  }
}

}  // namespace

bool is_place(const std::string& reg) {
  auto dot = reg.find('.');
  if (dot == std::string::npos) return reg == "%laneid";
  return std::find(std::begin(PLACES), std::end(PLACES), reg.substr(0, dot)) != std::end(PLACES);
}

void run(const Function& function, Thread& caller) {
  const Program& program = *function.program;
  Thread thread;
  thread.registers.assign(program.registers.size(), 0);
  for (auto [here, there] : function.places) thread.registers[static_cast<size_t>(here)] = caller.registers[static_cast<size_t>(there)];
  thread.touches = caller.touches;
  thread.local.resize(program.local.bytes + 16);
  std::vector<char> parameters(program.parameters.bytes + 16);
  char* memory = aligned(parameters, 16);
  point(thread, program.parameters, memory);
  point(thread, program.local, aligned(thread.local, 16));
  auto pass = [&](size_t i, bool back) {
    const Symbol& symbol = program.parameters.symbols[i];
    auto* outside = reinterpret_cast<char*>(function.passed[i].get(caller));
    back ? memcpy(outside, memory + symbol.offset, symbol.bytes) : memcpy(memory + symbol.offset, outside, symbol.bytes);
  };
  for (size_t i = function.results; i < function.passed.size(); i++) pass(i, false);
  run_until_it_waits(thread, program);
  for (size_t i = 0; i < function.results; i++) pass(i, true);
}

bool Touches::allow(size_t instruction, CUdeviceptr from, size_t bytes, bool write) {
  Touch& touch = of_[instruction];
  touch.write = write;
  CUdeviceptr to = from + bytes;
  if (from >= touch.low && to <= touch.high && touch.low) {
    if (from >= touch.open.from && to <= touch.open.to) return true;
    if (from == touch.open.to) return touch.open.to = to, true;
    touch.closed.push_back(touch.open);
    touch.open = {from, to};
    return true;
  }
  auto block = block_at(from);
  if (!block || to > block->end()) {
    violation("kernel %s %s %llx, which is not allocated", kernel_.c_str(), write ? "writes" : "reads", from);
    return false;
  }
  if (touch.low) touch.closed.push_back(touch.open);
  touch.low = block->from;
  touch.high = block->end();
  touch.open = {from, to};
  return true;
}

void Touches::move_to(Accesses& accesses) {
  for (Touch& touch : of_) {
    if (!touch.low) continue;
    touch.closed.push_back(touch.open);
    for (Range range : touch.closed) touch.write ? accesses.write(range.from, range.to - range.from) : accesses.read(range.from, range.to - range.from);
  }
}

void run(const Program& program, const Shape& shape, std::vector<char> parameters, Accesses& accesses) {
  Touches touches(program.name, program.touching);
  Places places(program);
  std::vector<char> shared(program.shared.bytes + shape.shared + 128);
  unsigned count = shape.block[0] * shape.block[1] * shape.block[2];
  std::vector<Thread> threads(program.waits ? count : 1);

  auto begin = [&](Thread& thread, unsigned number, const unsigned* block) {
    thread.registers.assign(program.registers.size(), 0);
    thread.at = 0;
    thread.state = State::RUNNING;
    thread.touches = &touches;
    thread.local.resize(program.local.bytes + 16);
    places.put(thread.registers, shape, number, block);
    point(thread, program.parameters, parameters.data());
    point(thread, program.local, aligned(thread.local, 16));
    point(thread, program.shared, aligned(shared, 128));
  };

  unsigned block[3];
  for (block[2] = 0; block[2] < shape.grid[2]; block[2]++)
    for (block[1] = 0; block[1] < shape.grid[1]; block[1]++)
      for (block[0] = 0; block[0] < shape.grid[0]; block[0]++) {
        if (program.waits) {
          for (unsigned i = 0; i < count; i++) begin(threads[i], i, block);
          run_together(threads, program);
        } else {
          for (unsigned i = 0; i < count; i++) {
            begin(threads[0], i, block);
            run_until_it_waits(threads[0], program);
          }
        }
      }
  touches.move_to(accesses);
}

}  // namespace model::ptx
