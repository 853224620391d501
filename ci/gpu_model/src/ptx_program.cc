// Reads a kernel from a module's PTX: its parameters, its memory, its labels and instructions.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "graphs.h"
#include "ptx.h"

namespace model::ptx {
namespace {

size_t number_after(const std::string& text, const std::string& what, size_t otherwise) {
  auto at = text.find(what);
  return at == std::string::npos ? otherwise : strtoull(text.c_str() + at + what.size(), nullptr, 10);
}

size_t up_to(size_t align, size_t bytes) { return (bytes + align - 1) / align * align; }

// The type of a declaration: the word like ".b32" or ".f64" in it, in bytes.
size_t declared_bytes(const std::string& declaration) {
  std::istringstream words(declaration);
  std::string word;
  while (words >> word)
    if (word.size() >= 3 && word[0] == '.' && strchr("usbf", word[1]) && isdigit(word[2])) return strtoull(word.c_str() + 2, nullptr, 10) / 8;
  return 8;
}

// Adds what "... .align 16 .b8 name[64]" declares.
void declare(Program& program, Area& area, const std::string& declaration, size_t smallest_align) {
  auto bracket = declaration.find('[');
  std::string head = trimmed(declaration.substr(0, bracket));
  std::string name = trimmed(head.substr(head.find_last_of(" \t") + 1));
  size_t width = declared_bytes(head), count = number_after(declaration, "[", 1);
  // Without a number ("extern .shared ... name[]") the launch says how much there is: it comes last.
  size_t align = std::max(number_after(declaration, ".align ", std::min<size_t>(width, 8)), smallest_align);
  area.bytes = up_to(align, area.bytes);
  area.symbols.push_back({program.reg(name), area.bytes});
  area.bytes += count * width;
}

void read_parameters(Program& program, const std::string& list) {
  for (const std::string& each : split_operands(list)) {
    if (each.find(".param") == std::string::npos) continue;
    declare(program, program.parameters, each, 1);
    program.parameter_bytes.push_back(program.parameters.bytes - program.parameters.symbols.back().offset);
  }
}

// A call of a device function. Only the one that sets a graph's condition is known.
Instruction call(Program& program, const Globals& globals, const std::string& line) {
  auto from = line.find('('), to = line.rfind(')');
  if (line.find("cudaGraphSetConditional") == std::string::npos || from == std::string::npos) return nullptr;
  auto arguments = split_operands(line.substr(from + 1, to - from - 1));
  Operand handle = operand(program, globals, arguments.at(0)), value = operand(program, globals, arguments.at(1));
  return [=](Thread& thread) {
    unsigned long long where;
    uint32_t what;
    memcpy(&where, reinterpret_cast<void*>(handle.get(thread)), sizeof where);
    memcpy(&what, reinterpret_cast<void*>(value.get(thread)), sizeof what);
    set_condition(where, what);
  };
}

bool begins(const std::string& line, const char* with) { return line.rfind(with, 0) == 0; }

}  // namespace

Program read(const std::string& text, const std::string& kernel, const Globals& globals) {
  Program program;
  program.name = kernel;
  auto entry = text.find(".entry " + kernel + "(");
  if (entry == std::string::npos) {
    program.missing = "its PTX";
    return program;
  }
  auto open = text.find('(', entry), close = text.find(')', entry);
  read_parameters(program, text.substr(open + 1, close - open - 1));
  // Shared memory may be declared before the kernel.
  for (size_t at = text.find(".shared "); at != std::string::npos && at < entry; at = text.find(".shared ", at + 1))
    declare(program, program.shared, text.substr(at, text.find(';', at) - at), 1);

  std::istringstream lines(text.substr(text.find('{', close)));
  std::string line;
  int depth = 0;
  while (std::getline(lines, line)) {
    line = trimmed(line.substr(0, line.find("//")));
    if (line.empty() || begins(line, ".loc ") || begins(line, ".loc\t")) continue;  // where in the source
    if (line == "{") {
      depth++;
    } else if (line == "}") {
      if (--depth == 0) break;
    } else if (line.back() == ':') {
      program.labels[line.substr(0, line.size() - 1)] = program.instructions.size();
    } else {
      for (std::string more; line.back() != ';' && std::getline(lines, more);) line += " " + trimmed(more);
      line.pop_back();
      if (begins(line, ".reg") || begins(line, ".pragma")) continue;
      if (begins(line, ".local") || begins(line, ".param")) {
        declare(program, program.local, line, 8);
      } else if (begins(line, ".shared")) {
        declare(program, program.shared, line, 1);
      } else {
        auto next = begins(line, "call") ? call(program, globals, line) : instruction(program, globals, line);
        if (!next) {
          program.missing = line;
          return program;
        }
        program.instructions.push_back(std::move(next));
      }
    }
  }
  return program;
}

}  // namespace model::ptx
