// Modules and kernels: what is loaded, what is found in it, what is launched.
#include "modules.h"

#include <elf.h>

#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "model.h"
#include "ptx.h"

using namespace model;

namespace {

struct Module;
struct Kernel {
  std::string name;
  Module* module;
  std::unique_ptr<ptx::Program> program;  // once it was launched
};

struct Module {
  std::string text;  // PTX; empty if it is machine code
  ptx::Globals globals;
  std::map<std::string, Kernel> kernels;
};

std::mutex modules_mutex;

// Kernel* and Module* stand behind CUDA's handles: never freed.
Module* module_of(void* handle) { return static_cast<Module*>(handle); }
Kernel* kernel_of(void* handle) { return static_cast<Kernel*>(handle); }

// ".global .align 4 .b8 name[64] = {1, 2, ...};"
void read_globals(Module& module) {
  const std::string& text = module.text;
  for (size_t at = 0; (at = text.find(".global .align ", at)) != std::string::npos;) {
    std::string declaration = text.substr(at, text.find(';', at) - at);
    at += declaration.size();
    unsigned align, bits;
    char name[256];
    if (sscanf(declaration.c_str(), ".global .align %u .b%u %255[^[ ;=]", &align, &bits, name) < 3) {
      unsupported("PTX: " + declaration);
      continue;
    }
    size_t width = bits / 8, count = 1;
    if (auto bracket = declaration.find('['); bracket != std::string::npos) count = strtoull(declaration.c_str() + bracket + 1, nullptr, 10);
    CUdeviceptr memory = 0;
    if (allocate(&memory, std::max<size_t>(256, count * width), false)) continue;
    if (auto brace = declaration.find('{'); brace != std::string::npos) {
      const char* from = declaration.c_str() + brace + 1;
      for (size_t i = 0; i < count; i++) {
        char* end;
        unsigned long long value = strtoull(from, &end, 0);
        if (end == from) break;
        memcpy(reinterpret_cast<char*>(memory) + i * width, &value, width);
        from = end + strspn(end, ", \n\t");
      }
    }
    module.globals[name] = {memory, count * width};
  }
}

// Machine code for an AMD GPU is an ELF file: it is not run, but its data is there.
void read_elf(Module& module, const char* image) {
  const auto* file = reinterpret_cast<const Elf64_Ehdr*>(image);
  const auto* sections = reinterpret_cast<const Elf64_Shdr*>(image + file->e_shoff);
  for (int i = 0; i < file->e_shnum; i++) {
    if (sections[i].sh_type != SHT_SYMTAB && sections[i].sh_type != SHT_DYNSYM) continue;
    const char* names = image + sections[sections[i].sh_link].sh_offset;
    const auto* symbols = reinterpret_cast<const Elf64_Sym*>(image + sections[i].sh_offset);
    for (size_t s = 0; s < sections[i].sh_size / sizeof(Elf64_Sym); s++) {
      const Elf64_Sym& symbol = symbols[s];
      std::string name = names + symbol.st_name;
      bool is_data = ELF64_ST_TYPE(symbol.st_info) == STT_OBJECT && symbol.st_shndx < file->e_shnum && symbol.st_size;
      if (!is_data || module.globals.count(name)) continue;
      const Elf64_Shdr& section = sections[symbol.st_shndx];
      CUdeviceptr memory = 0;
      if (allocate(&memory, std::max<size_t>(256, symbol.st_size), false)) continue;
      if (section.sh_type != SHT_NOBITS) memcpy(reinterpret_cast<void*>(memory), image + section.sh_offset + (symbol.st_value - section.sh_addr), symbol.st_size);
      module.globals[name] = {memory, symbol.st_size};
      log("  data: %s", name.c_str());
    }
  }
}

bool is_ptx(const void* image) {
  const char* text = static_cast<const char*>(image);
  return *text == '/' || *text == '.' || *text == '\n';
}

CUresult load(void** out, const void* image) {
  auto* module = new Module;
  if (image && is_ptx(image)) {
    module->text = static_cast<const char*>(image);
    if (const char* path = getenv("GPU_MODEL_PTX"))
      if (FILE* file = fopen(path, "a")) {
        fprintf(file, "%s\n", module->text.c_str());
        fclose(file);
      }
    read_globals(*module);
  } else if (image && !memcmp(image, ELFMAG, SELFMAG)) {
    read_elf(*module, static_cast<const char*>(image));
  }
  *out = module;
  return CUDA_SUCCESS;
}

CUresult find(void** out, void* handle, const char* name) {
  std::lock_guard lock(modules_mutex);
  Module* module = module_of(handle);
  Kernel& kernel = module->kernels[name];
  kernel.name = name;
  kernel.module = module;
  *out = &kernel;
  return CUDA_SUCCESS;
}

const ptx::Program& program_of(Kernel& kernel) {
  std::lock_guard lock(modules_mutex);
  if (!kernel.program) kernel.program = std::make_unique<ptx::Program>(ptx::read(kernel.module->text, kernel.name, kernel.module->globals));
  return *kernel.program;
}

CUresult launch(CUstream stream, const CUDA_KERNEL_NODE_PARAMS& params) {
  Work work;
  if (CUresult error = make_launch(params, &work)) return error;
  return enqueue(stream, work);
}

}  // namespace

namespace model {

// In graphs.cc, a node remembers the parameters.
void remember(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS& params);

CUresult make_launch(const CUDA_KERNEL_NODE_PARAMS& params, Work* work) {
  Kernel& kernel = *kernel_of(params.func);
  const ptx::Program& program = program_of(kernel);
  if (!program.missing.empty()) {
    if (!skips_kernels()) {
      unsupported("kernel " + kernel.name + ": " + program.missing);
      return CUDA_ERROR_NOT_SUPPORTED;
    }
    *work = {"kernel not run: " + kernel.name, CU_GRAPH_NODE_TYPE_KERNEL, [](Accesses&) {}, [params](CUgraphNode node) { remember(node, params); }};
    return CUDA_SUCCESS;
  }
  if (params.extra) {
    unsupported("kernel arguments in one buffer");
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  std::vector<char> arguments(program.parameters.bytes);
  for (const ptx::Symbol& parameter : program.parameters.symbols)
    if (params.kernelParams) memcpy(&arguments[parameter.offset], params.kernelParams[&parameter - program.parameters.symbols.data()], parameter.bytes);
  ptx::Shape shape{{params.gridDimX, params.gridDimY, params.gridDimZ}, {params.blockDimX, params.blockDimY, params.blockDimZ}, params.sharedMemBytes};
  *work = {"kernel: " + kernel.name, CU_GRAPH_NODE_TYPE_KERNEL,
           [&program, shape, arguments](Accesses& accesses) { ptx::run(program, shape, arguments, accesses); },
           [params](CUgraphNode node) { remember(node, params); }};
  return CUDA_SUCCESS;
}

}  // namespace model

// ------------------------------------------------------------------------------------------------------------- modules
DRIVER cuModuleLoadData(CUmodule* module, const void* image) { ENTER(); return load(reinterpret_cast<void**>(module), image); }
DRIVER cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned, CUjit_option*, void**) { ENTER(); return load(reinterpret_cast<void**>(module), image); }
DRIVER cuModuleLoadFatBinary(CUmodule* module, const void* image) { ENTER(); return load(reinterpret_cast<void**>(module), image); }
DRIVER cuModuleUnload(CUmodule) { ENTER(); return CUDA_SUCCESS; }
DRIVER cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) { ENTER(); return find(reinterpret_cast<void**>(function), module, name); }
DRIVER cuModuleGetGlobal_v2(CUdeviceptr* address, size_t* bytes, CUmodule module, const char* name) {
  ENTER();
  const auto& globals = module_of(module)->globals;
  auto at = globals.find(name);
  if (at == globals.end()) {
    log("  no data: %s", name);
    return CUDA_ERROR_NOT_FOUND;
  }
  if (address) *address = at->second.first;
  if (bytes) *bytes = at->second.second;
  return CUDA_SUCCESS;
}
DRIVER cuLibraryLoadData(CUlibrary* library, const void* image, CUjit_option*, void**, unsigned, CUlibraryOption*, void**, unsigned) { ENTER(); return load(reinterpret_cast<void**>(library), image); }
DRIVER cuLibraryUnload(CUlibrary) { ENTER(); return CUDA_SUCCESS; }
DRIVER cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* name) { ENTER(); return find(reinterpret_cast<void**>(kernel), library, name); }
DRIVER cuLibraryGetModule(CUmodule* module, CUlibrary library) { ENTER(); *module = reinterpret_cast<CUmodule>(library); return CUDA_SUCCESS; }

// ------------------------------------------------------------------------------------------------------------- kernels
DRIVER cuKernelGetFunction(CUfunction* function, CUkernel kernel) { ENTER(); *function = reinterpret_cast<CUfunction>(kernel); return CUDA_SUCCESS; }
DRIVER cuFuncGetName(const char** name, CUfunction function) { ENTER(); *name = kernel_of(function)->name.c_str(); return CUDA_SUCCESS; }
DRIVER cuKernelGetName(const char** name, CUkernel kernel) { ENTER(); *name = kernel_of(kernel)->name.c_str(); return CUDA_SUCCESS; }
DRIVER cuFuncGetAttribute(int* value, CUfunction_attribute which, CUfunction) {
  ENTER();
  *value = which == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : which == CU_FUNC_ATTRIBUTE_NUM_REGS ? 32 : 0;
  return CUDA_SUCCESS;
}
DRIVER cuFuncSetAttribute(CUfunction, CUfunction_attribute, int) { ENTER(); return CUDA_SUCCESS; }
DRIVER cuFuncSetCacheConfig(CUfunction, CUfunc_cache) { ENTER(); return CUDA_SUCCESS; }
DRIVER cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction, int, size_t) { ENTER(); *blocks = 2; return CUDA_SUCCESS; }
DRIVER cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, CUfunction, int, size_t, unsigned) { ENTER(); *blocks = 2; return CUDA_SUCCESS; }
DRIVER cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, CUstream stream, void** params, void** extra) {
  ENTER();
  CUDA_KERNEL_NODE_PARAMS all{};
  all.func = function;
  all.gridDimX = gx, all.gridDimY = gy, all.gridDimZ = gz;
  all.blockDimX = bx, all.blockDimY = by, all.blockDimZ = bz;
  all.sharedMemBytes = shared;
  all.kernelParams = params;
  all.extra = extra;
  return launch(stream, all);
}
DRIVER cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** params, void** extra) {
  ENTER();
  return cuLaunchKernel(function, config->gridDimX, config->gridDimY, config->gridDimZ, config->blockDimX, config->blockDimY, config->blockDimZ, config->sharedMemBytes, config->hStream, params, extra);
}

// ------------------------------------------------------------------------------------------------------------- linking
// Hands back the PTX itself, which is what the model can read.
DRIVER cuLinkCreate_v2(unsigned, CUjit_option*, void**, CUlinkState* state) { ENTER(); *state = reinterpret_cast<CUlinkState>(new std::string); return CUDA_SUCCESS; }
DRIVER cuLinkAddData_v2(CUlinkState state, CUjitInputType, void* data, size_t bytes, const char*, unsigned, CUjit_option*, void**) {
  ENTER();
  reinterpret_cast<std::string*>(state)->append(static_cast<char*>(data), bytes);
  return CUDA_SUCCESS;
}
DRIVER cuLinkComplete(CUlinkState state, void** out, size_t* bytes) {
  ENTER();
  auto* text = reinterpret_cast<std::string*>(state);
  *out = text->data();
  *bytes = text->size();
  return CUDA_SUCCESS;
}
DRIVER cuLinkDestroy(CUlinkState state) { ENTER(); delete reinterpret_cast<std::string*>(state); return CUDA_SUCCESS; }

// What the libraries beside the driver compute, they compute in a stream's turn. They say what they touch: `reads` and `writes`
// hold `counts[0]` and `counts[1]` pairs of address and bytes.
EXPORT int gpu_model_enqueue(CUstream stream, const char* kind, void (*run)(void*), void (*destroy)(void*), void* data, const CUdeviceptr* reads, const CUdeviceptr* writes, const size_t* counts) {
  Accesses touched;
  for (size_t i = 0; i < counts[0]; i++) touched.read(reads[2 * i], reads[2 * i + 1]);
  for (size_t i = 0; i < counts[1]; i++) touched.write(writes[2 * i], writes[2 * i + 1]);
  std::shared_ptr<void> owned(data, destroy);
  return enqueue(stream, {kind, CU_GRAPH_NODE_TYPE_KERNEL, [=](Accesses& accesses) {
                            accesses.add(touched);
                            run(owned.get());
                          }});
}

EXPORT void gpu_model_turn(uint64_t* work, uint64_t* node) {
  *work = turn().work;
  *node = turn().node;
}
