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

// Adds what "... .align 16 .b8 name[64]" declares. Calls declare the same names again, each time for themselves alone.
void declare(Program& program, Area& area, const std::string& declaration, size_t smallest_align) {
  auto bracket = declaration.find('[');
  std::string head = trimmed(declaration.substr(0, bracket));
  int name = program.reg(trimmed(head.substr(head.find_last_of(" \t") + 1)));
  size_t width = declared_bytes(head), count = number_after(declaration, "[", 1), bytes = count * width;
  // Without a number ("extern .shared ... name[]") the launch says how much there is: it comes last.
  size_t align = std::max(number_after(declaration, ".align ", std::min<size_t>(width, 8)), smallest_align);
  for (const Symbol& symbol : area.symbols)
    if (symbol.reg == name && symbol.bytes >= bytes && symbol.offset % align == 0) return;
  area.bytes = up_to(align, area.bytes);
  area.symbols.push_back({name, area.bytes, bytes});
  area.bytes += bytes;
}

void read_parameters(Program& program, const std::string& list) {
  for (const std::string& each : split_operands(list))
    if (each.find(".param") != std::string::npos) declare(program, program.parameters, each, 1);
}

// Where a function is defined: it may be declared before.
struct Definition {
  std::string results, parameters;
  size_t body = std::string::npos;
};

Definition definition_of(const std::string& text, const std::string& function) {
  const char* space = " \t\r\n";
  for (size_t at = text.find(".func"); at != std::string::npos; at = text.find(".func", at + 1)) {
    Definition found;
    size_t name = text.find_first_not_of(space, at + strlen(".func"));
    if (text[name] == '(') {
      size_t end = text.find(')', name);
      found.results = text.substr(name + 1, end - name - 1);
      name = text.find_first_not_of(space, end + 1);
    }
    size_t open = text.find('(', name), close = text.find(')', name);
    if (trimmed(text.substr(name, open - name)) != function) continue;
    found.parameters = text.substr(open + 1, close - open - 1);
    found.body = text.find_first_of("{;", close);
    if (text[found.body] == '{') return found;
  }
  return {};
}

void read_body(Program& program, const std::string& text, size_t from, const Globals& globals);

// "call.uni (result), name, (argument, argument)": of a function in the text, or of the one that sets a graph's condition.
Instruction call(Program& program, const Globals& globals, const std::string& text, const std::string& line) {
  Function function;
  std::string name;
  for (const std::string& part : split_operands(line.substr(line.find_first_of(" \t")))) {
    if (part[0] != '(') {
      name = part;
      function.results = function.passed.size();
    } else {
      for (auto& each : split_operands(part.substr(1, part.size() - 2))) function.passed.push_back(operand(program, globals, each));
    }
  }
  if (name == "cudaGraphSetConditional") {
    Operand handle = function.passed.at(0), value = function.passed.at(1);
    return [=](Thread& thread) {
      unsigned long long where;
      uint32_t what;
      memcpy(&where, reinterpret_cast<void*>(handle.get(thread)), sizeof where);
      memcpy(&what, reinterpret_cast<void*>(value.get(thread)), sizeof what);
      set_condition(where, what);
    };
  }
  auto definition = definition_of(text, name);
  if (definition.body == std::string::npos) return nullptr;
  function.program = std::make_shared<Program>();
  Program& inner = *function.program;
  inner.name = name;
  inner.touching = program.touching;
  read_parameters(inner, definition.results);
  read_parameters(inner, definition.parameters);
  read_body(inner, text, definition.body, globals);
  if (inner.waits) inner.missing = "threads that wait for each other in " + name;
  if (!inner.missing.empty()) {
    program.missing = inner.missing;
    return nullptr;
  }
  program.touching = inner.touching;
  for (auto& [reg, number] : inner.registers)
    if (is_place(reg)) function.places.emplace_back(number, program.reg(reg));
  return [function = std::move(function)](Thread& thread) { run(function, thread); };
}

bool begins(const std::string& line, const char* with) { return line.rfind(with, 0) == 0; }

// From the brace that opens it to the one that closes it. What it does not know becomes `missing`.
void read_body(Program& program, const std::string& text, size_t from, const Globals& globals) {
  std::istringstream lines(text.substr(from));
  std::string line, label;
  int depth = 0;
  while (std::getline(lines, line)) {
    line = trimmed(line.substr(0, line.find("//")));
    if (line.empty() || begins(line, ".loc ") || begins(line, ".loc\t")) continue;  // where in the source
    if (line == "{") {
      depth++;
    } else if (line == "}") {
      if (--depth == 0) break;
    } else if (line.back() == ':') {
      label = line.substr(0, line.size() - 1);
      program.labels[label] = program.instructions.size();
    } else {
      for (std::string more; line.back() != ';' && std::getline(lines, more);) line += " " + trimmed(more);
      line.pop_back();
      if (begins(line, ".reg") || begins(line, ".pragma")) continue;
      if (begins(line, ".branchtargets")) {
        for (auto& target : split_operands(line.substr(strlen(".branchtargets")))) program.targets[label].push_back(&program.labels[target]);
      } else if (begins(line, ".local") || begins(line, ".param")) {
        declare(program, program.local, line, 8);
      } else if (begins(line, ".shared")) {
        declare(program, program.shared, line, 1);
      } else {
        auto next = begins(line, "call") ? call(program, globals, text, line) : instruction(program, globals, line);
        if (!next) {
          if (program.missing.empty()) program.missing = line;
          return;
        }
        program.instructions.push_back(std::move(next));
      }
    }
  }
}

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
  read_body(program, text, text.find('{', close), globals);
  return program;
}

}  // namespace model::ptx
